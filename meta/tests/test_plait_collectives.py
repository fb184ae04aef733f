"""Compiled programs with functional collectives: two processes, one of which comes late."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch.distributed as dist

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


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
def test_a_program_waits_for_the_processes_that_come_late(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in (0, 1)
    ]
    try:
        found = [each.communicate(timeout=120) for each in running]
    finally:
        for each in running:
            each.kill()
    for each, (out, errors) in zip(running, found, strict=True):
        assert each.returncode == 0, errors[-3000:]
        assert out.strip().endswith("right")
