"""Constants written at an index that is in bounds are comparisons; others are left to raise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import assert_like_eager, trace

from plait_fx_passes import DEFAULT_PASSES, LOOP_PASSES, run_passes, to_aten, wrap_runtime
from plait_fx_passes.passes.bounds import stop_of

PASSES = (*DEFAULT_PASSES, *LOOP_PASSES)
WRITES = {"aten.scatter.value", "aten.scatter.src", "aten.one_hot.default"}


def apply(program, *inputs):
    """The operators that are left; values are eager's to the last bit, strides and aliasing too."""
    gm = trace(program)
    left = run_passes(to_aten(gm, list(inputs)), PASSES, verify_each=True)
    assert_like_eager("selections", wrap_runtime(left, left.module()), gm, list(inputs), 0.0)
    return {str(node.target) for node in left.graph.nodes if node.op == "call_function"}


def random(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(1))


IN_BOUNDS = {
    "argmax": lambda x: x.argmax(1, keepdim=True),
    "argmin of all": lambda x: x[:1].argmin().expand(4, 1),
    "max": lambda x: x.max(1, keepdim=True)[1],
    "min": lambda x: x.min(1, keepdim=True)[1],
    "topk": lambda x: x.topk(3)[1][:, 1:2],
    "sort": lambda x: x.sort(1)[1][:, :1],
    "kthvalue": lambda x: x.kthvalue(2, keepdim=True)[1],
    "median": lambda x: x.median(1, keepdim=True)[1],
    "mode": lambda x: x.mode(1, keepdim=True)[1],
    "remainder": lambda x: x[:, :1].abs().long() % 6,
    "clamp": lambda x: x[:, :1].long().clamp(0, 5),
    "mask": lambda x: x[:, :1].long() & 3,
    "truth": lambda x: (x[:, :1] > 0).long(),
    "views": lambda x: x.argmax(1).flip([0]).view(2, 2).t().reshape(4, 1).clone(),
    "count": lambda x: torch.ones_like(x).cumsum(1).long()[:, :1] % 6,
}
UNKNOWN = {
    "given": lambda x: x[:, :1].abs().clamp(0, 5).long(),
    "negative": lambda x: x[:, :1].long().abs() % -6 + 5,
    "clamped to nothing": lambda x: x[:, :1].long().clamp(3, -1) + 1,
    "clamped below": lambda x: x[:, :1].long().clamp(0),
    "of more": lambda x: torch.cat([x, -x.abs() - 9], 1).argmax(1, keepdim=True),
    "added": lambda x: x[:, :5].argmax(1, keepdim=True) + 1,
}


@pytest.mark.parametrize("name", IN_BOUNDS)
def test_writes_at_known_places_are_comparisons(name):
    index = IN_BOUNDS[name]
    assert not apply(lambda x: torch.zeros_like(x).scatter(1, index(x), 1.0), random(4, 6)) & WRITES


@pytest.mark.parametrize("name", UNKNOWN)
def test_writes_at_places_that_may_be_out_of_bounds_stay(name):
    index = UNKNOWN[name]
    assert apply(lambda x: torch.zeros_like(x).scatter(1, index(x), 1.0), random(4, 6)) & WRITES


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.full_like(x, -2.5).scatter_(-1, x.argmax(-1, keepdim=True), float("inf")),
        lambda x: torch.zeros_like(x).scatter(0, x.argmax(0, keepdim=True), float("nan")),
        lambda x: torch.full_like(x, 7, dtype=torch.uint8).scatter(0, x.argmax(0, keepdim=True), 3),
        lambda x: torch.zeros_like(x, dtype=torch.bool).scatter(1, x.argmax(1, True), True),
        lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, True), torch.ones_like(x)),
        lambda x: torch.ones_like(x).half().scatter(1, x.argmax(1, True), -0.0) * x,
        lambda x: F.one_hot(x.argmax(1), 6) * 2,
        lambda x: F.one_hot(x.argmax(1).view(2, 2), 9).float(),
        lambda x: F.gumbel_softmax(x, hard=True),
    ],
)
def test_every_form_is_a_comparison(program):
    assert not apply(program, random(4, 6)) & WRITES


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.scatter(1, x.argmax(1, True), 1.0),  # into what is no constant
        lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, True), x),
        lambda x: torch.zeros_like(x).scatter(1, x.topk(2)[1], 1.0),  # two places in a row
        lambda x: torch.zeros_like(x).scatter(1, x[:3].argmax(1, True), 1.0),  # some rows only
        lambda x: torch.zeros_like(x).scatter(0, x.argmax(1, True), 1.0),  # along the other
        lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, True), 1.0, reduce="add"),
        lambda x: torch.zeros_like(x, dtype=torch.int32).scatter(1, x.argmax(1, True), 1.5),
        lambda x: F.one_hot(x[:, :1].abs().clamp(0, 5).long(), 6),
    ],
)
def test_other_writes_stay(program):
    left = apply(program, random(6, 6))
    assert left & {*WRITES, "aten.scatter.value_reduce"}


def test_kernels_of_operators_keep_their_writes():
    def program(x):
        return torch.zeros_like(x).scatter(1, x.argmax(1, True), 1.0), F.one_hot(x.argmax(1), 6)

    left = run_passes(to_aten(trace(program), [random(4, 6)]))
    names = {str(node.target) for node in left.graph.nodes if node.op == "call_function"}
    assert names >= {"aten.scatter.value", "aten.one_hot.default"}


def test_what_eager_refuses_is_refused():
    def program(x):
        return torch.zeros_like(x)[:, :3].contiguous().scatter(1, x.argmax(1, True), 1.0)

    x = torch.eye(6)
    left = run_passes(to_aten(trace(program), [x]), PASSES)
    for run in (program, wrap_runtime(left, left.module())):
        with pytest.raises(RuntimeError, match="out of bounds"):
            run(x)


def test_bounds_are_above_what_is_there():
    x = random(4, 6)
    for name, index in IN_BOUNDS.items():
        graph = to_aten(trace(index), [x])
        stop = stop_of(graph.results[0])
        values = graph.module()(x)[0]
        assert stop is not None, name
        assert int(values.min()) >= 0
        assert int(values.max()) < stop, name


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (lambda x: (~~(x > 0)).float(), 0),
        (lambda x: (x > 0).logical_not().logical_not().float(), 0),
        (lambda x: (~~x.long()).abs(), 0),
        (lambda x: x.flip([0, 1]).flip([0, 1]).sin(), 0),
        (lambda x: x.logical_not().logical_not().float(), 2),
        (lambda x: x.flip([0]).flip([1]).sin(), 2),
    ],
)
def test_what_undoes_itself_goes(program, count):
    gm, x = trace(program), random(4, 6)
    left = run_passes(to_aten(gm, [x]), verify_each=True)
    assert_like_eager("inverses", wrap_runtime(left, left.module()), gm, [x], 0.0)
    names = [str(node.target) for node in left.graph.nodes if node.op == "call_function"]
    assert sum("not" in name or "flip" in name for name in names) == count
