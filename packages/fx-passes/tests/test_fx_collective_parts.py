"""Graphs in parts between collectives: what each computes, and what is written in place."""

from __future__ import annotations

import pytest
import torch
from collective_programs import gathered, graph_of, ops, reduced, scattered

from plait_fx_passes import collective_parts, parts_runner, run_passes, verify
from plait_fx_passes.passes.collectives import CollectivePart, collective_passes
from plait_fx_passes.passes.collectives.operands import OPERANDS_FIRST


def square(seed=0, size=8):
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))


def shapes_of(parts):
    """For each step the operators that it calls."""
    return [
        [str(n.target).split(".")[1] for n in step.graph.graph.nodes if n.op == "call_function"]
        if isinstance(step, CollectivePart)
        else str(step.node.target).split(".")[1]
        for step in parts.steps
    ]


def by_kernels(graph, written):
    """What a compiler makes of a part: here ATen's kernels, and copies to what is written."""
    module = graph.module()

    def run(*inputs):
        results = module(*inputs)
        for result, place in written.items():
            inputs[place].copy_(results[result])
        return tuple(each for n, each in enumerate(results) if n not in written)

    return run


@pytest.fixture
def alone(monkeypatch):
    """Collectives of one process, which gives what each operator would of itself."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_what_finishes_results_is_one_part_behind_all_waits():
    def program(x, y):
        return reduced(x @ y) * 0.5 + x, reduced(y @ y) * 0.5 + y

    graph = run_passes(graph_of(program, [square(), square()]), collective_passes(in_order=True))
    assert shapes_of(collective_parts(graph)) == [
        *(["mm"], "all_reduce", ["mm"], "all_reduce", "wait_tensor", "wait_tensor"),
        ["mul", "add", "mul", "add"],
    ]


def test_views_are_taken_where_they_are_needed():
    def program(x, y):
        rows = x.t()
        return gathered(rows[:4].contiguous(), 1) + 1, rows @ y

    parts = collective_parts(graph_of(program, [square(), square()]))
    for step in parts.steps:
        if isinstance(step, CollectivePart):
            assert all(str(node.target) != "aten.permute.default" for node in step.given)
            verify(step.graph)


def test_what_the_last_part_computes_may_be_written_in_place():
    def program(x, y, z):
        early = y @ z
        return reduced(y @ y) + x, early, z * 2

    graph = graph_of(program, [square()] * 3)
    parts = collective_parts(graph, {0: 0, 1: 1})
    assert parts.written == {0: 0}  # the second is computed before a wait, and waits
    last = parts.steps[-1]
    assert [last.given[place].name for place in last.written.values()] == ["input_0"]


def test_what_a_collective_reads_that_nobody_waits_for_stays():
    def program(x, y):
        ops.all_gather_into_tensor(x, 2, "0")
        return reduced(y) + x

    graph = graph_of(program, [square(), square()])
    assert collective_parts(graph, {0: 0}).written == {}
    assert collective_parts(graph, {0: 1}).written == {0: 1}


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch has no gloo")
def test_several_results_and_several_tensors_are_kept_apart(alone):
    def program(x, y):
        low, high = torch.aminmax(x, dim=0)
        one, other = ops.all_reduce_coalesced([low * 2, high], "sum", "0")
        return ops.wait_tensor(one) + y[0], ops.wait_tensor(other) - low

    inputs = [square(1), square(2)]
    graph = graph_of_several(program, inputs)
    found = parts_runner(collective_parts(graph), by_kernels)(*inputs)
    for one, other in zip(found, graph.module()(*inputs), strict=True):
        assert torch.equal(one, other)


def graph_of_several(program, inputs):
    """A program that takes results apart, which proxies cannot."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from plait_fx_passes import to_aten

    return to_aten(make_fx(program)(*inputs), inputs)


def test_what_is_sent_is_computed_first():
    def backward(grad, x, w):
        of_weight = x.t() @ grad
        of_rows = scattered(grad @ w, 2)
        return of_weight, of_rows

    def names(program, *inputs):
        graph = run_passes(graph_of(program, inputs), (OPERANDS_FIRST,), verify_each=True)
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        return [str(node.target).split(".")[1] for node in calls]

    assert names(backward, *[square()] * 3) == [
        *("mm", "reduce_scatter_tensor", "permute", "mm", "wait_tensor")
    ]

    def drawn(grad, x, w):  # random numbers stay where they are
        noise = torch.ops.aten.bernoulli.p(x, 0.5)
        return noise @ x, reduced(grad @ w)

    assert names(drawn, *[square()] * 3)[:4] == ["bernoulli", "mm", "all_reduce", "mm"]
