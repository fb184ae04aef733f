"""What goes wrong between processes: a compiled program raises what eager raises.

Where processes send different sizes to one collective, gloo ends the process itself, in eager too.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import plait


def reduced(x, group):
    return torch.relu(functional.all_reduce(x * 2, "sum", group)) + 1


def of_all(x):
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def of_no_operation(x, group):
    return functional.all_reduce(x, "nonsense", group) + 1


def uneven(x, group):
    return functional.reduce_scatter_single(x, "sum", 0, group) + 1


def raised(program, *inputs):
    """The class of what a program raises, and what it says, without ports."""
    try:
        with torch.no_grad():
            found = program(*inputs) + 0
    except Exception as error:
        return type(error), str(error).partition("[127")[0]
    raise AssertionError(f"it gave {found}")


def errors_agree():
    x, world = torch.ones(3), dist.group.WORLD
    for program in (of_no_operation, uneven):
        assert raised(plait.compile(program), x, world) == raised(program, x, world)


def late_process_agrees():
    """One that does not come in time."""
    compiled, x = plait.compile(reduced), torch.ones(4)
    with torch.no_grad():
        compiled(x, dist.group.WORLD)
    found = []
    for program in (reduced, compiled):
        ranks = list(range(dist.get_world_size()))
        group = dist.new_group(ranks, timeout=timedelta(seconds=0.5))
        if dist.get_rank() == 0:
            found.append(raised(program, x, group))
        else:
            time.sleep(1)
        dist.barrier()
    assert not found or found[0] == found[1], found
    assert not found or "Timed out" in found[0][1]


def groups_that_go_agree(begin):
    """A group that is destroyed, all of them, and others in their place."""
    x, ranks = torch.ones(4), list(range(dist.get_world_size()))
    compiled, of_world = plait.compile(reduced), plait.compile(of_all)
    group = dist.new_group(ranks)
    with torch.no_grad():
        compiled(x, group)
        of_world(x)
    dist.barrier()
    dist.destroy_process_group(group)
    assert raised(compiled, x, group) == raised(reduced, x, group)
    dist.destroy_process_group()
    assert raised(of_world, x) == raised(of_all, x)
    begin("again")
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(of_world(x), of_all(x) + 0)
            world = dist.group.WORLD
            assert torch.equal(compiled(x, world), reduced(x, world) + 0)


def death_agrees():
    """The last case: a process that ends while others wait for it."""
    compiled, x = plait.compile(reduced), torch.ones(4)
    with torch.no_grad():
        compiled(x, dist.group.WORLD)
    dist.barrier()
    if dist.get_rank() != 0:
        print("right", flush=True)
        os._exit(0)
    time.sleep(0.3)
    world = dist.group.WORLD
    found = raised(compiled, x, world)
    assert found == raised(reduced, x, world), found
    assert "closed by peer" in found[1] or "reset by peer" in found[1], found
    print("right", flush=True)
    os._exit(0)
