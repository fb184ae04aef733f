"""Inputs that a program writes to: their gradients after the call, and what hooks on them see."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from fx_oracle import trace

from plait_fx_passes import WaypointError, in_pieces, memory_efficient, run_pieces, to_joint
from plait_fx_passes.tools import compile_with, identity


def goes_on(x, w):
    x.mul_(w)
    return x.sin()


def before_and_after(x, w):
    early = x + w
    x.mul_(2)
    return early, x.sin()


def twice(x, w):
    x.add_(w)
    early = x.exp()
    x.add_(1)
    return early + x.tanh()


def both_inputs(x, w):
    x.add_(w.detach())
    w.add_(x)
    return (x * w).sum()


def a_row(x, w):
    x.select(0, 0).copy_(w.select(0, 1))
    return x.exp()


def of_a_tuple(x, w):
    first, second = (x * 2).split([1, 2])
    x.add_(w)
    return x.sum(0) * first.sum(0) + second.sum(0)


def returns_itself(x, w):
    x.copy_(w)
    return x, x.exp(), x.select(0, 0)


def a_view_from_before(x, w):
    row = x.select(0, 0)
    x.mul_(w)
    return row.sin()


def another_result(x, w):
    early = x + w
    x.mul_(2)
    return early


def without_gradients(x, w):
    x.detach().mul_(2)
    return x.sin() * w


PROGRAMS = (
    goes_on, before_and_after, twice, both_inputs, a_row, of_a_tuple, returns_itself,
    a_view_from_before, another_result, without_gradients,
)  # fmt: skip
IN_PIECES = {goes_on: 2, before_and_after: 2, twice: 3, both_inputs: 3, a_row: 2, of_a_tuple: 2}


def plain(leaf):
    return leaf.detach().clone()


def result(leaf):
    return leaf * 1.5


def view(leaf):
    return (leaf * 1.5).t()


def plain_view(leaf):
    return leaf.detach().clone().t()


def gradients_of_the_inputs(run, x, w):
    loss = squared(run(x, w))
    wanted = [each for each in (x, w) if each.requires_grad]
    one_by_one = [grads(loss, [each], retain_graph=True) for each in wanted]
    return one_by_one, grads(loss, wanted, retain_graph=True), grads(loss, wanted)


def hooks_before(run, x, w):
    seen = []
    for each in (x, w):
        if each.requires_grad:
            each.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    squared(run(x, w)).backward()
    return seen


def hooks_after(run, x, w):
    seen = []
    loss = squared(run(x, w))
    for each in (x, w):
        if each.requires_grad:
            each.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    loss.backward()
    return seen


def retained(run, x, w):
    wanted = [each for each in (x, w) if each.requires_grad and not each.is_leaf]
    for each in wanted:
        each.retain_grad()
    squared(run(x, w)).backward()
    return [each.grad for each in wanted]


def used_again(run, x, w):
    (squared(run(x, w)) + x.sin().sum() + (x * w).sum()).backward()


def twice_over(run, x, w):
    loss = squared(run(x, w))
    wanted = [each for each in (x, w) if each.requires_grad]
    found = [each for each in grads(loss, wanted, create_graph=True) if each is not None]
    if found:
        squared(found).backward()


WAYS = (gradients_of_the_inputs, hooks_before, hooks_after, retained, used_again, twice_over)


def squared(results):
    results = results if isinstance(results, (tuple, list)) else (results,)
    return sum((each * each).sum() for each in results)


def grads(loss, wanted, **options):
    return torch.autograd.grad(loss, wanted, allow_unused=True, **options)


def observe(run, way, kinds):
    """What a way of going backward gives, and the inputs and gradients of leaves afterwards."""
    torch.manual_seed(0)
    leaves = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in kinds]
    x, w = (kind(leaf) for kind, leaf in zip(kinds, leaves, strict=True))
    try:
        found = way(run, x, w)
    except RuntimeError as error:
        found = str(error).split(",")[0]
    return found, x.detach(), w.detach(), [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("way", WAYS, ids=lambda each: each.__name__)
@pytest.mark.sampled(3)
def test_written_inputs_lie_on_the_way_of_gradients(program, way):
    for kinds in product((plain, result, view, plain_view), (plain, result)):
        if not any(kind in (result, view) for kind in kinds):
            continue
        examples = [kind(torch.randn(3, 3, dtype=torch.float64).requires_grad_()) for kind in kinds]
        run = compile_with(trace(program), examples, lambda graph, kind: identity(graph))
        wanted, got = observe(program, way, kinds), observe(run, way, kinds)
        if isinstance(wanted[0], str) or isinstance(got[0], str):
            assert got[0] == wanted[0], kinds
        else:
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("program", IN_PIECES, ids=lambda each: each.__name__)
def test_pieces_end_where_inputs_are_written_to(program):
    inputs = [result(torch.randn(3, 3, requires_grad=True)) for _ in range(2)]
    gm = trace(program)
    with pytest.raises(WaypointError) as refused:
        to_joint(gm, inputs)
    pieces = in_pieces(gm, inputs, refused.value)
    assert len(pieces) == IN_PIECES[program]
    run = run_pieces(pieces, lambda each: each.program)
    expected = [each.clone() for each in inputs]
    wanted = program(*expected)
    torch.testing.assert_close(run(*inputs), wanted)
    torch.testing.assert_close(inputs, expected)


def test_what_no_later_piece_takes_is_dropped():
    gm = trace(before_and_after)
    inputs = [result(torch.randn(3, 3, requires_grad=True)) for _ in range(2)]
    with pytest.raises(WaypointError) as refused:
        to_joint(gm, inputs)
    one, two = in_pieces(gm, inputs, refused.value)
    assert one.drops == (1,)  # w, which only the first takes
    assert set(two.takes) == {0, 2}


def test_a_program_that_ends_without_gradients_leaves_them_on():
    """As the part of a program before a graph break in a region without gradients does."""
    graph = torch.fx.Graph()
    x, w = map(graph.placeholder, "xw")
    graph.call_method("mul_", (x, 2))
    result = graph.call_function(torch.mul, (x, w))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output((result, graph.call_method("neg", (w,))))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    inputs = [torch.ones(3, requires_grad=True) * 2, torch.ones(3)]
    with pytest.raises(WaypointError) as refused:
        to_joint(gm, inputs)
    assert len(in_pieces(gm, inputs, refused.value)) == 2
    assert torch.is_grad_enabled()


def test_memory_efficient_programs_know_written_inputs():
    wanted = observe(goes_on, gradients_of_the_inputs, (result, result))
    run = memory_efficient(goes_on, budget=0)
    torch.testing.assert_close(observe(run, gradients_of_the_inputs, (result, result)), wanted)


def writes_and_goes_on(x):
    x.mul_(2)
    return x.sin()


def test_a_node_that_both_writes_and_goes_on_is_not_taken_apart():
    graph = torch.fx.Graph()
    graph.output((graph.call_function(writes_and_goes_on, (graph.placeholder("x"),)),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    x = torch.ones(3, requires_grad=True) * 2
    with pytest.raises(WaypointError) as refused:
        to_joint(gm, [x])
    with pytest.raises(WaypointError):
        in_pieces(gm, [x], refused.value)
