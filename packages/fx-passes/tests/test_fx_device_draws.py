"""What operators draw on GPUs, as functions of the generator's state: here on the CPU, as if that
drew alike."""

from __future__ import annotations

from functools import partial
from math import prod

import pytest
import torch
from torch import fx

from plait_fx_passes import (
    LOOP_PASSES,
    NUMERIC_PASSES,
    Pass,
    partition,
    run_passes,
    to_aten,
    to_joint,
    verify,
)
from plait_fx_passes.passes import base
from plait_fx_passes.passes.device_draws import DEVICE_DRAWS, DRAWN
from plait_fx_passes.passes.drawn_numbers import _RULES, compute_draws
from plait_utils.philox import RESERVE, STEP, UNIFORM
from plait_utils.philox_agreement import Kind, dropout_scale

aten = torch.ops.aten
THREADS = 1024


def _drawing(*kinds: Kind) -> Pass:
    def known(device, kind):
        return THREADS if kind in (kinds or Kind) else None

    return Pass(DEVICE_DRAWS.name, partial(compute_draws, known=known))


def _input(*size, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)


def dropout(x, probability):
    """As a GPU's; the CPU's is made of several operators."""
    return torch.native_dropout(x, probability, True)[0]


class _Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _traced(function):
    return fx.symbolic_trace(_Program(function))


def _passed(function, x, *kinds):
    recorded = to_aten(_traced(function), [x])
    graph = run_passes(recorded, (_drawing(*kinds),), verify_each=True)
    verify(graph, repropagate=True)
    return graph


def _calls(graph, target):
    return [node for node in graph.graph.nodes if node.target is target]


class _Drawing(fx.Interpreter):
    """Runs a graph with a given state of the generator."""

    state = torch.tensor([77, 40])

    def call_function(self, target, args, kwargs):
        if target is RESERVE:
            return self.state
        return super().call_function(target, args, kwargs)


def _run(graph, x):
    return _Drawing(fx.GraphModule({}, graph.graph)).run(x)


def _numbers(size, start=0, vector=1, dtype=torch.float32):
    return UNIFORM(_Drawing.state, list(size), start, THREADS, vector, dtype)


def test_what_is_drawn_is_what_there_are_rules_for():
    assert DRAWN == _RULES.keys()


def test_one_state_is_reserved_for_all_that_draw_one_after_another():
    def program(x):
        y = dropout(x.sin(), 0.3) + torch.rand_like(x)
        return dropout(y, 0.1), x.new_empty(5000).bernoulli_(0.5)

    graph = _passed(program, _input(8, 16))
    (reserved,) = _calls(graph, RESERVE)
    assert reserved.args == (3 * STEP + 2 * STEP, torch.device("cpu"))
    assert [node.args[2] for node in _calls(graph, UNIFORM)] == [0, 4, 8, 12]
    assert not any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
                   for n in graph.graph.nodes if n is not reserved)  # fmt: skip


def test_what_is_drawn_by_operators_comes_in_between():
    def program(x):
        drawn = torch.rand_like(x)
        return drawn, torch.bernoulli(drawn), torch.rand_like(x), x.bernoulli(0.2)

    graph = _passed(program, _input(8, 16))
    assert [node.args[0] for node in _calls(graph, RESERVE)] == [4, 8]
    order = [n.target for n in graph.graph.nodes]
    places = [order.index(RESERVE), order.index(aten.bernoulli.default)]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("dtype", "widest"),
    [(torch.float32, 4), (torch.float64, 2), (torch.bfloat16, 8), (torch.float16, 8)],
)
@pytest.mark.parametrize(
    ("size", "vector"), [((6, 20), 8), ((6, 6), 4), ((7, 6), 2), ((7, 9), 1), ((1,), 1)]
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_dropouts_are_those_of_atens_kernels(size, vector, dtype, widest, is_turned):
    turned = is_turned and len(size) == 2
    vector = min(vector, widest)

    def program(x):
        y = x * 3
        return dropout(y.t() if turned else y, 0.3)

    given = _input(*size, dtype=dtype)
    given.flatten()[0] = -torch.inf
    graph = _passed(program, given)
    found = _run(graph, given)[0]
    numbers = _numbers([prod(size)], vector=vector)
    by_rows = size[::-1] if turned and vector == 1 else size
    numbers = numbers.view(by_rows)
    if turned and vector > 1:
        numbers = numbers.t()
    kept, scale = dropout_scale(1 - 0.3, dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    scaled = (given * 3).t() if turned else given * 3
    wanted = scaled.to(wide) * (numbers.double() < kept) * torch.tensor(scale, dtype=wide)
    assert torch.equal(found.nan_to_num(7), wanted.to(dtype).nan_to_num(7))
    assert found.stride() == scaled.stride()


def test_other_numbers_are_those_of_atens_kernels():
    def program(x):
        return (
            torch.rand_like(x.t()),
            x.new_empty(8, 5).uniform_(-1, 1),
            x.new_empty(3, 3, dtype=torch.float16).uniform_(),
            x.new_empty(9, dtype=torch.float64).uniform_(0, 7),
            x.new_empty(9, dtype=torch.int64).bernoulli_(0.25),
        )

    found = _run(_passed(program, _input(6, 4)), torch.zeros(6, 4))
    assert torch.equal(found[0], _numbers((6, 4)).t() % 1)
    assert torch.equal(found[1], _numbers((8, 5), 4) * 2 - 1)
    assert torch.equal(found[2], _numbers((3, 3), 8).half() % 1)
    assert torch.equal(found[3], _numbers((9,), 12, dtype=torch.float64) * 7)
    assert torch.equal(found[4], (_numbers((9,), 16) < 0.25).long())


LEFT = {
    "a view of an input may lie anywhere": lambda x: dropout(x[:4], 0.5),
    "what an input becomes lies where it lay": lambda x: (dropout(x.relu_(), 0.5), x.exp_())[0],
    "what is checked to be above 0": lambda x: torch.normal(0.0, x.abs()),
    "sums that are rounded once": lambda x: x.clone().uniform_(-0.1, 0.2),
    "integers that a dtype lacks": lambda x: torch.randint_like(x, 2**25),
    "complex numbers": lambda x: torch.randn_like(x, dtype=torch.complex64),
    "integers up to the largest": lambda x: x.long().random_(5, None),
    "cauchy numbers": lambda x: x.clone().cauchy_(),
    "probabilities of each element": lambda x: x.sigmoid().bernoulli(),
    "eager draws part by part": lambda x: x.new_empty(2**29).uniform_(),
}


@pytest.mark.parametrize("program", LEFT.values(), ids=LEFT)
def test_what_is_not_known_is_drawn_by_operators(program):
    recorded = to_aten(_traced(program), [_input(8, 16)])
    graph = run_passes(recorded, (_drawing(),), verify_each=True)
    assert not _calls(graph, RESERVE)
    assert [n.target for n in graph.graph.nodes] == [n.target for n in recorded.graph.nodes]


def test_what_differs_on_a_gpu_is_drawn_by_operators():
    def program(x):
        return dropout(x.sin(), 0.5), torch.rand_like(x)

    graph = _passed(program, _input(8, 16), Kind.UNIFORM)
    assert len(_calls(graph, aten.native_dropout.default)) == 1
    assert len(_calls(graph, UNIFORM)) == 1


def test_inputs_may_lie_anywhere_but_where_no_vectors_are_read():
    graph = _passed(lambda x: (dropout(x, 0.5), dropout(x * 2, 0.5)), _input(8, 16))
    assert len(_calls(graph, aten.native_dropout.default)) == 1
    assert [node.args[4] for node in _calls(graph, UNIFORM)] == [4]
    graph = _passed(lambda x: dropout(x, 0.5), _input(7, 9))
    assert [node.args[4] for node in _calls(graph, UNIFORM)] == [1]


def _copied(x):
    y = x.exp()
    return (
        *(dropout(y[1:17].clone(), 0.5), dropout(y[1:17] * 1, 0.5)),
        *(dropout(torch.cat([y[1:9], y[9:17]]), 0.5), dropout(y[1:17].double().float(), 0.5)),
    )


def test_copies_are_where_eager_makes_them():
    recorded = to_aten(_traced(_copied), [_input(20)])
    graph = run_passes(recorded, (_drawing(), *NUMERIC_PASSES, *LOOP_PASSES), verify_each=True)
    assert [node.args[4] for node in _calls(graph, UNIFORM)] == [4, 4, 4, 4]


def test_operators_that_draw_by_vectors_keep_their_copies(monkeypatch):
    recorded = to_aten(_traced(lambda x: dropout(x[1:17].clone(), 0.5)), [_input(20)])
    monkeypatch.setattr(base, "_counts_places", lambda node: True)
    graph = run_passes(recorded, (*NUMERIC_PASSES, *LOOP_PASSES), verify_each=True)
    (drawn,) = _calls(graph, aten.native_dropout.default)
    assert drawn.args[0].meta["val"].storage_offset() == 0


def test_views_of_results_lie_in_vectors_as_far_as_they_begin_at_these():
    def program(x):
        y = x.exp()
        return tuple(dropout(y[first:], 0.5) for first in (8, 6, 1))

    graph = _passed(program, _input(16))
    assert [node.args[4] for node in _calls(graph, UNIFORM)] == [4, 2, 1]


def test_numbers_that_nobody_uses_move_the_generator_on():
    graph = _passed(lambda x: (torch.rand_like(x), x + 1)[1], _input(8, 16))
    assert len(_calls(graph, RESERVE)) == 1


def test_the_cpu_draws_one_after_another():
    recorded = to_aten(_traced(torch.rand_like), [_input(3)])
    graph = run_passes(recorded, (DEVICE_DRAWS,))
    assert not _calls(graph, RESERVE)


@pytest.mark.parametrize("budget", [None, 0, 1])
def test_a_backward_is_given_the_mask_or_the_state(budget):
    joint = to_joint(_traced(lambda x: dropout(x.sin(), 0.3)), [_input(64, 64).requires_grad_()])
    joint = joint.replace_graph(run_passes(joint.flat(), (_drawing(),)).graph)
    parts = partition(joint, budget)
    verify(parts.forward)
    verify(parts.backward)
    assert len(_calls(parts.forward, RESERVE)) == 1
    assert not _calls(parts.backward, RESERVE)
    assert len(_calls(parts.backward, UNIFORM)) == (1 if budget == 0 else 0)
    values = [node.meta["val"] for node in parts.backward.placeholders]
    masks = [value for value in values if value.dtype is torch.bool]
    assert len(masks) == (0 if budget == 0 else 1)
