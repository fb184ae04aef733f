"""Modules that torch spreads over processes, compiled: two of them, which must agree with eager."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import plait
from plait.buckets import bucket_starts
from plait.circumstances import active_bucket_bytes
from plait.gpus import gpu_starts, moves_between_gpus
from plait.parts import in_parts

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the suite beside the tests

from processes.running import run_cases

gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")

QUICK = ("buckets_are_sent_early", "tensor_parallel_agrees")
SLOW = (
    *("data_parallel_agrees", "data_parallel_steps_agree", "fully_sharded_agrees"),
    *("half_precision_agrees", "sequence_parallel_agrees", "two_dimensional_agrees"),
    *("whole_models_agree", "whole_half_precision_agrees", "whole_models_change_together"),
    *("whole_models_share_graphs", "whole_sharded_steps_agree"),
    *("whole_two_dimensional_agrees", "other_whole_models_agree"),
)


@gloo
@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_two_processes_agree_with_eager(case, tmp_path):
    assert run_cases(2, tmp_path, case) == []


@gloo
@pytest.mark.slow
@pytest.mark.parametrize("case", ["two_dimensional_agrees", "fully_sharded_agrees"])
def test_four_processes_agree_with_eager(case, tmp_path):
    assert run_cases(4, tmp_path, case) == []


def recorded(program, *inputs):
    """A graph of what a program calls, with fake values."""
    graph = fx.symbolic_trace(program)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [
            torch.empty(size, device=device, requires_grad=needs) for size, device, needs in inputs
        ]
        fx.passes.shape_prop.ShapeProp(graph, fake_mode=mode)
        values = {}
        for node, fake in zip(graph.graph.find_nodes(op="placeholder"), fakes, strict=True):
            values[node] = node.meta["val"] = fake
        for node in graph.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "call_method":
                made = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                made = node.target(*args, **kwargs)
            values[node] = node.meta["val"] = made
    return graph


def layers(x, a, b, c, d):
    y = torch.relu(x @ a)
    y = torch.relu(y @ b).sum(1, keepdim=True) + y
    y = torch.relu(y @ c)
    return torch.relu(y @ d)


WEIGHTS = [((64, 64), "cpu", True)] * 4


def starts_of(limit, program=layers, weights=WEIGHTS):
    graph = recorded(program, ((8, 64), "cpu", False), *weights)
    for node in graph.graph.find_nodes(op="placeholder"):
        node.meta["bucket_bytes"] = limit
    found = bucket_starts(graph)
    return graph, [node.name for node in graph.graph.nodes if node in found]


def test_a_part_begins_where_a_bucket_is_full():
    one = 64 * 64 * 4
    assert starts_of(one)[1] == ["matmul_1", "matmul_2", "matmul_3"]
    assert starts_of(2 * one)[1] == ["matmul_2"]
    assert starts_of(3 * one)[1] == ["matmul_1"]
    assert starts_of(4 * one)[1] == []
    with torch.no_grad():
        assert starts_of(one)[1] == []


def test_a_part_begins_where_least_goes_over():
    def program(x, a, b):
        y = torch.relu(x @ a)
        narrow = y.sum(1)
        wide = torch.outer(narrow, narrow.exp()) * 2
        return wide @ b

    weights = [((64, 64), "cpu", True), ((8, 64), "cpu", True)]
    assert starts_of(8 * 64 * 4, program, weights)[1] == ["exp"]


def test_graphs_that_nobody_waits_for_stay_whole():
    graph = recorded(layers, ((8, 64), "cpu", False), *WEIGHTS)
    assert active_bucket_bytes() is None
    assert not bucket_starts(graph)


def on_two(x, a, b, scale):
    y = torch.relu(x @ a) * scale
    z = y.to("cuda:1")
    return torch.tanh(z @ b) + 1, y.sum()


other_gpu = pytest.mark.skipif(
    torch.cuda.device_count() == 1, reason="fakes on a second GPU need one, or none at all"
)


@other_gpu
def test_graphs_on_two_gpus_are_cut_between_them():
    inputs = [((4, 4), "cuda:0", False), ((4, 4), "cuda:0", False), ((4, 4), "cuda:1", False)]
    graph = recorded(on_two, *inputs, ((), "cpu", False))
    moved = [node.name for node in graph.graph.nodes if moves_between_gpus(node)]
    assert moved == ["to"]
    found = gpu_starts(graph)
    assert [node.name for node in graph.graph.nodes if node in found] == ["to", "sum_1"]
    parts = []

    def compile_part(part, _):
        parts.append(part)
        return part.forward

    assert in_parts(graph, compile_part, found) is not None
    places = [
        {
            node.meta["val"].device.index
            for node in part.graph.nodes
            if node.op != "output" and node.meta["val"].device.type == "cuda"
        }
        for part in parts
    ]
    assert places == [{0}, {1}, {0}]


@other_gpu
def test_graphs_on_one_gpu_stay_whole():
    on_one = [((4, 4), "cuda:1", False)] * 3
    graph = recorded(on_two, *on_one, ((), "cpu", False))
    assert not gpu_starts(graph)
    assert not any(map(moves_between_gpus, graph.graph.nodes))


def test_reports_of_many_breaks_are_short():
    """What several calls go on in is told once: all ways through would be exponentially many."""

    def program(x):
        for n in range(40):
            x = x + 1 if n % 2 else x * 2
            torch._C._get_tracing_state()
            print(end="") if float(x.sum()) < -1e9 else None
        return x

    compiled = plait.compile(program, backend="eager")
    for size in (2, 3, 4):
        compiled(torch.ones(size))
    assert len(str(plait.report(compiled))) < 200_000
