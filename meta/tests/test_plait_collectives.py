"""Compiled programs with functional collectives: two processes, one of which comes late."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from plait.arguments import parse_options
from plait.collectives import in_order
from plait.stages import Stages
from plait_fx_passes import to_aten
from plait_utils import Profile, dump_folder

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the suite beside the tests

from processes.running import run_cases, run_group

PROGRAM = """
import sys
import time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import plait

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
torch.manual_seed(rank)
ops = torch.ops._c10d_functional


def by_functions(x, w):
    return torch.relu(functional.all_reduce(x @ w, "sum", dist.group.WORLD)) + 1


def by_operators(x, w):
    started = ops.all_reduce(x @ w, "sum", "0")
    part = ops.reduce_scatter_tensor(torch.tanh(x), "sum", 2, "0")
    gathered = ops.wait_tensor(ops.all_gather_into_tensor(x * 2, 2, "0"))
    return torch.relu(ops.wait_tensor(started)) + gathered.sum(), ops.wait_tensor(part) * 2


def with_gradients(x, w):
    y = ops.wait_tensor(ops.all_reduce(x @ w, "sum", "0"))
    return (torch.tanh(y) * 2).sum()


def parts_of(value):
    return value if isinstance(value, tuple) else (value,)


x, w = torch.randn(8, 8), torch.randn(8, 8)
for program in (by_functions, by_operators):
    expected = parts_of(program(x, w))
    compiled = plait.compile(program)
    compiled(x, w)
    for late in (0, 1):
        dist.barrier()
        if rank == late:
            time.sleep(0.2)
        found = parts_of(compiled(x, w))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)

w.requires_grad_()
(expected,) = torch.autograd.grad(with_gradients(x, w), w)
compiled = plait.compile(with_gradients)
for late in (0, 1):
    loss = compiled(x, w)
    dist.barrier()
    if rank == late:
        time.sleep(0.2)
    (found,) = torch.autograd.grad(loss, w)
    torch.testing.assert_close(found, expected)
dist.barrier()
dist.destroy_process_group()
print("right")
"""


BY_NAME = """
import sys
import time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import plait

rank, count, store = int(sys.argv[1]), int(sys.argv[3]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count)
torch.manual_seed(rank)
pairs = [dist.new_group([n, n + 1]) for n in range(0, count, 2)]
pair, world = pairs[rank // 2], dist.group.WORLD
# What torch 2.13 calls them, and torch before.
gather = getattr(functional, "all_gather_single", functional.all_gather_tensor)
scatter = getattr(functional, "reduce_scatter_single", functional.reduce_scatter_tensor)


def reduced(x, w):
    return torch.relu(functional.all_reduce(x @ w, "sum", dist.group.WORLD)) + 1


def returned(x, w):
    return functional.all_reduce(x @ w, "sum", world), x + 1


def gathered(x, w):
    rows = gather(torch.tanh(x), 0, world)
    columns = gather(x @ w, 1, pair)
    part = scatter(rows, "sum", 0, world)
    return rows.sum(0), columns * 2, part - x


def several(x, w):
    one, other = functional.all_reduce_coalesced([x @ w, w.sum(0)], "sum", world)
    return one * 2 + other


def in_both_groups(x, w):
    far = functional.all_reduce(x @ w, "sum", world)
    y = torch.tanh(x @ x)
    near = functional.all_reduce(y @ w, "sum", pair)
    z = torch.tanh(y @ w)
    return far + 1, near * 2, functional.all_reduce(z, "sum", world).relu()


def of_one_process_more(x, w):
    for _ in range(1 + rank // 2):  # the second pair reduces twice
        x = functional.all_reduce(torch.tanh(x @ w), "sum", pair) / 2
    return functional.all_reduce(x, "sum", world) * 2


def with_gradients(x, w):
    y = functional.all_reduce(x @ w, "sum", world)
    return (torch.tanh(y) * 2).sum()


def parts_of(value):
    return value if isinstance(value, tuple) else (value,)


x, w = torch.randn(8, 8), torch.randn(8, 8)
programs = (reduced, returned, gathered, several, in_both_groups, of_one_process_more)
for program in programs:
    with torch.no_grad():
        expected = [each + 0 for each in parts_of(program(x, w))]
        for joins in (False, True) if program is not of_one_process_more else (False,):
            options = {"join_collectives": joins}
            compiled = plait.compile(program, fullgraph=True, options=options)
            for late in (0, 1, None):
                dist.barrier()
                if rank == late:
                    time.sleep(0.1)
                found = parts_of(compiled(x, w))
                for one, other in zip(found, expected, strict=True):
                    assert one.stride() == other.stride()
                    torch.testing.assert_close(one + 0, other)

w.requires_grad_()
(expected,) = torch.autograd.grad(with_gradients(x, w), w)
(found,) = torch.autograd.grad(plait.compile(with_gradients)(x, w), w)
torch.testing.assert_close(found, expected)
dist.barrier()
dist.destroy_process_group()
print("right")
"""


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
@pytest.mark.slow
def test_a_program_waits_for_the_processes_that_come_late(tmp_path):
    assert run_group(["-c", PROGRAM], 2, tmp_path) == []


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.sampled(2)
def test_functional_collectives_are_part_of_the_graph(count, tmp_path):
    assert run_group(["-c", BY_NAME], count, tmp_path) == []


QUICK = {
    2: ("gradients_agree", "steps_agree", "written_inputs_agree"),
    4: ("meshes_agree",),
}
"""What of the suite `processes` runs with all tests."""


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.slow
def test_processes_agree_with_eager(count, tmp_path):
    import torch.distributed._functional_collectives as functional

    if count == 2 and not hasattr(functional, "all_gather_single"):
        pytest.skip(
            "before torch 2.13 collectives with gradients wrap results, which breaks graphs"
        )
    assert run_cases(count, tmp_path, *QUICK[count]) == []


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
def test_what_goes_wrong_between_processes_goes_wrong_as_in_eager(tmp_path):
    cases = ("errors_agree", "late_process_agrees", "groups_that_go_agree", "death_agrees")
    assert run_cases(2, tmp_path, *cases) == []


ops = torch.ops._c10d_functional


def steps_of(program, *inputs, options=None):
    """The order of a graph's calls behind plait's passes."""
    graph = torch.fx.symbolic_trace(program)
    stages = Stages("steps", Profile(), dump_folder("steps"), verify=True)
    recorded = to_aten(graph, inputs)
    made = in_order(recorded, stages, parse_options(options or {}))
    calls = [node for node in made.graph.nodes if node.op == "call_function"]
    return [node.target.__name__.split(".")[0] for node in calls], made is recorded


def two_sums(x, y):
    one = x @ x
    first = ops.wait_tensor(ops.all_reduce(one, "sum", "0"))
    two = one @ y
    second = ops.wait_tensor(ops.all_reduce(two, "sum", "0"))
    return first * 2, second @ y


def test_collectives_overlap_with_what_does_not_need_them():
    inputs = torch.ones(4, 4), torch.ones(4, 4)
    names, same = steps_of(two_sums, *inputs)
    assert not same
    assert names[:4] == ["mm", "all_reduce", "mm", "all_reduce"]
    assert names.index("wait_tensor") == 4
    joined, _ = steps_of(two_sums, *inputs, options={"join_collectives": True})
    assert joined.count("all_reduce_coalesced") == 1
    off = {"disabled_passes": "late-waits,operands-first,early-starts"}
    assert steps_of(two_sums, *inputs, options=off)[1]


def test_collectives_stay_in_the_order_of_the_program():
    def program(x, y):
        first = ops.wait_tensor(ops.all_reduce(x @ y @ y, "sum", "0"))
        second = ops.wait_tensor(ops.all_gather_into_tensor(y, 2, "1"))
        third = ops.wait_tensor(ops.all_reduce(y, "max", "0"))
        return first + 1, second * 2, third

    names, _ = steps_of(program, torch.ones(4, 4), torch.ones(4, 4))
    started = [name for name in names if name.startswith("all_")]
    assert started == ["all_reduce", "all_gather_into_tensor", "all_reduce"]


def test_graphs_without_collectives_stay_as_they_are():
    assert steps_of(lambda x, y: (x @ y).relu(), torch.ones(4, 4), torch.ones(4, 4))[1]
