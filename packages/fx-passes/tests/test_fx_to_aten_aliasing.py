"""Outputs and inputs that share memory, and what cannot be recorded."""

from __future__ import annotations

import copy

import pytest
import torch
from fx_oracle import assert_like_eager, check_program, trace

from plait_fx_passes import (
    AtenTraceError,
    Computed,
    InputItself,
    InputView,
    Mutation,
    ResultView,
    SyntheticBase,
    is_direct,
    run_passes,
    to_aten,
    verify,
    wrap_runtime,
)


def _identity(x):
    return x


def _input_and_more(x, y):
    return x, x + y, y


def _view_of_input(x):
    return x.t()


def _windows_of_input(x):
    return x[1:], x[:, 2], x.view(-1), x.unsqueeze(0)


def _detached(x):
    return x.detach()


def _same_twice(x):
    y = x + 1
    return y, y


def _same_view_twice(x):
    y = x.t()
    return y, x, y


def _fresh_and_its_whole_view(x):
    y = x.sin()
    return y, y.squeeze(), y.detach()


def _two_views_of_fresh(x):
    y = x * 2
    return y[0], y[1:]


def _fresh_and_its_view(x):
    y = x * 2
    return y, y.t()


def _view_then_its_base(x):
    y = x * 2
    return y.view(-1)[3:7], y


def _expanded(x):
    return (x.sum(0, keepdim=True) + 1).expand(5, 4)


def _strided_view_of_fresh(x):
    return (x + 1)[:, ::2]


def _clone_of_input(x):
    return x.clone()


def _copies(x):
    y = x.clone()
    return y, y.clone(), x.clone()


def _equal_computations(x):
    return x + 1, x + 1


def _contiguous_input(x):
    return x.contiguous()


def _same_dtype(x):
    return x.to(x.dtype), x.float()


def _written_and_viewed(x):
    x.add_(1)
    return x.t(), x[0]


def _viewed_then_written(x):
    view = x[1]
    x.mul_(2)
    return view, x.sum()


def _unsafe_parts(x):
    return torch.unsafe_split(x, 2, 1), torch.unsafe_split_with_sizes(x + 1, [1, 2])


def _dtype_view(x):
    return x.view(torch.int32)


def _complex_views(x):
    c = torch.view_as_complex(x.view(3, 2, 2))
    return c.real, c.conj(), c.imag


def _nothing(x):
    return None, 3, x + 1


def _nested(x):
    y = x + 1
    return {"a": y, "b": [x, (y.t(), 2)]}


def _list_output(x):
    return [x + 1, x]


def _single(x):
    return x.exp()


def _no_tensor(x):
    return x.size(0), "text"


ALIASING = [
    (_identity, 1),
    (_input_and_more, 2),
    (_view_of_input, 1),
    (_windows_of_input, 1),
    (_detached, 1),
    (_same_twice, 1),
    (_same_view_twice, 1),
    (_fresh_and_its_whole_view, 1),
    (_two_views_of_fresh, 1),
    (_fresh_and_its_view, 1),
    (_view_then_its_base, 1),
    (_expanded, 1),
    (_strided_view_of_fresh, 1),
    (_clone_of_input, 1),
    (_copies, 1),
    (_equal_computations, 1),
    (_contiguous_input, 1),
    (_same_dtype, 1),
    (_written_and_viewed, 1),
    (_viewed_then_written, 1),
    (_unsafe_parts, 1),
    (_dtype_view, 1),
    (_complex_views, 1),
    (_nothing, 1),
    (_nested, 1),
    (_list_output, 1),
    (_single, 1),
    (_no_tensor, 1),
]


@pytest.mark.parametrize(("program", "count"), ALIASING, ids=[p.__name__[1:] for p, _ in ALIASING])
def test_outputs_share_memory_as_in_eager(program, count):
    torch.manual_seed(2)
    check_program(program, [torch.randn(3, 4) for _ in range(count)])


def test_outputs_are_described_as_data():
    gm = trace(_written_and_viewed)
    graph = to_aten(gm, [torch.randn(3, 4)])
    assert graph.mutations == (Mutation(input=0, result=0),)
    assert [type(source) for source in graph.outputs] == [InputView, InputView]
    assert graph.outputs[0].geometry.stride == (1, 4)
    assert set(graph.output_aliases) == {0, 1}
    assert to_aten(trace(_identity), [torch.ones(2)]).outputs == (InputItself(0),)
    fresh = to_aten(trace(_fresh_and_its_view), [torch.ones(3, 4)])
    assert isinstance(fresh.outputs[0], Computed)
    assert isinstance(fresh.outputs[1], ResultView)


def test_a_program_without_aliasing_needs_no_wrapper():
    def program(x, y):
        return x + y, x * y

    graph = to_aten(trace(program), [torch.ones(2), torch.ones(2)])
    compiled = graph.module()
    assert is_direct(graph)
    assert wrap_runtime(graph, compiled) is compiled


# Inputs that share memory with each other.


def _add_second_to_first(x, y):
    x.add_(y)
    return y * 2


def _write_both(x, y):
    x.add_(1)
    y.mul_(2)
    return x.sum() + y.sum()


def _returns_second(x, y):
    x.add_(1)
    return y


@pytest.mark.parametrize("program", [_add_second_to_first, _write_both, _returns_second])
@pytest.mark.parametrize(
    "inputs_of",
    [
        lambda base: [base, base],
        lambda base: [base, base.detach()],
        lambda base: [base[1:], base[:-1]],
        lambda base: [base[1:], base[1:]],
        lambda base: [base[:2, :2], base[2:, 2:]],
    ],
    ids=["same", "alias", "overlap", "equal-windows", "disjoint"],
)
def test_inputs_that_share_memory_behave_as_in_eager(program, inputs_of):
    inputs = inputs_of(torch.arange(16.0).view(4, 4))
    if program is _add_second_to_first:
        try:
            program(*copy.deepcopy(inputs))
        except RuntimeError:  # eager refuses to read and write overlapping windows at once
            return
    graph = check_program(program, inputs)
    assert graph.shared_inputs == ((0, 1),)


def test_overlapping_inputs_are_read_through_a_synthetic_base():
    base = torch.arange(16.0).view(4, 4)
    graph = to_aten(trace(_write_both), [base[1:], base[:-1]])
    assert SyntheticBase(of=0, numel=16, offset_from=-4) in graph.inputs


def test_shared_inputs_that_are_not_written_cost_nothing():
    x = torch.ones(3)
    graph = to_aten(trace(lambda a, b: (a + b,)), [x, x])
    assert graph.shared_inputs == ()
    assert is_direct(graph)


def test_the_example_inputs_are_not_changed():
    x = torch.randn(3, 4)
    before = copy.deepcopy(x)
    to_aten(trace(_transposed_then_written), [x])
    assert x.shape == (3, 4)
    assert torch.equal(x, before)


def _transposed_then_written(x):
    x.t_()
    x.add_(1)
    return x


# What cannot be expressed is refused, with the place and a way out.


def test_a_value_that_the_graph_would_have_to_know_is_refused():
    def program(x):
        return x + x.sum().long().item()

    gm = trace(program)
    for node in gm.graph.nodes:
        node.meta["source_line"] = "model.py:12"
    with pytest.raises(AtenTraceError, match=r"item.*needs the values") as caught:
        to_aten(gm, [torch.ones(2)])
    assert "model.py:12" in str(caught.value)


def test_a_tensor_that_changes_its_memory_is_refused():
    def program(x):
        return x.resize_(10)

    with pytest.raises(AtenTraceError, match="what memory a tensor owns"):
        to_aten(trace(program), [torch.ones(2)])


def test_an_error_that_eager_raises_names_the_node():
    def program(x, y):
        return x @ y

    with pytest.raises(AtenTraceError, match="matmul"):
        to_aten(trace(program), [torch.ones(2, 3), torch.ones(2, 3)])


def test_the_number_of_example_inputs_must_fit():
    with pytest.raises(AtenTraceError, match="1 placeholders but 2 example inputs"):
        to_aten(trace(_identity), [torch.ones(2), torch.ones(2)])
    with pytest.raises(AtenTraceError, match="is a int"):
        to_aten(trace(_identity), [3])


def test_passes_keep_the_surroundings():
    graph = to_aten(trace(_written_and_viewed), [torch.randn(3, 4)])
    optimized = run_passes(graph)
    verify(optimized)
    assert optimized.outputs == graph.outputs
    assert optimized.mutations == graph.mutations
    run = wrap_runtime(optimized, optimized.module())
    assert_like_eager("passes", run, _written_and_viewed, [torch.randn(3, 4)], 1e-6)
