"""Training steps of several processes over gloo: eager and plait in turn.

`python -m benchmarks.collectives --processes 4 --rounds 15` prints rows of milliseconds: eager,
plait with collectives where the program has them, in order but early, and joined.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.multiprocessing as multiprocessing

import plait

Step = Callable[[torch.Tensor], torch.Tensor]

_OFF = {"disabled_passes": "late-waits,operands-first,early-starts"}
SYSTEMS: dict[str, dict[str, object] | None] = {
    "eager": None,
    "plain": _OFF,
    "order": {},
    "joined": {"join_collectives": True},
}


def data_parallel(width: int, layers: int) -> tuple[Step, torch.Tensor]:
    """Each process has all weights, whose gradients are reduced, those of the last layer first."""
    linear = [torch.nn.Linear(width, width) for _ in range(layers)]
    net = torch.nn.Sequential(*(part for each in linear for part in (each, torch.nn.Tanh())))
    weights = list(net.parameters())
    optimizer = torch.optim.AdamW(weights, 1e-3)
    count = dist.get_world_size()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        for each in reversed(weights):
            each.grad = functional.all_reduce(each.grad, "sum", dist.group.WORLD) / count
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, torch.randn(64, width)


def sharded(width: int, layers: int) -> tuple[Step, torch.Tensor]:
    """Each process has some rows of each weight, gathers the others, and gets their gradients."""
    count = dist.get_world_size()
    shards = [_weight(width // count, width, width) for _ in range(layers)]

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x
        for each in shards:
            y = torch.tanh(y @ functional.all_gather_single_autograd(each, 0, dist.group.WORLD))
        loss = y.square().mean()
        loss.backward()
        _descend(shards)
        return loss

    return step, torch.randn(64, width)


def tensor_parallel(width: int, blocks: int) -> tuple[Step, torch.Tensor]:
    """Two products a block: of gathered rows by columns, and by rows, whose sums are scattered."""
    count = dist.get_world_size()
    pairs = [
        (_weight(width, width // count, width), _weight(width // count, width, width))
        for _ in range(blocks)
    ]
    weights = [each for pair in pairs for each in pair]

    def step(x: torch.Tensor) -> torch.Tensor:
        y, world = x, dist.group.WORLD
        for left, right in pairs:
            rows = functional.all_gather_single_autograd(y, 0, world)
            sums = torch.relu(rows @ left) @ right
            y = y + functional.reduce_scatter_single_autograd(sums, "sum", 0, world)
        loss = y.square().mean()
        loss.backward()
        _descend(weights)
        return loss

    return step, torch.randn(256 // count, width)


def _weight(rows: int, columns: int, width: int) -> torch.Tensor:
    return (torch.randn(rows, columns) / width**0.5).requires_grad_()


def _descend(weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for each in weights:
            assert each.grad is not None
            each -= 1e-3 * each.grad
            each.grad = None


ROWS: tuple[tuple[str, Callable[[int, int], tuple[Step, torch.Tensor]], int, int], ...] = (
    ("data parallel, AdamW, 12 layers of 64", data_parallel, 64, 12),
    ("data parallel, AdamW, 6 layers of 512", data_parallel, 512, 6),
    ("sharded, 12 layers of 64", sharded, 64, 12),
    ("sharded, 6 layers of 512", sharded, 512, 6),
    ("tensor parallel, 4 blocks of 512", tensor_parallel, 512, 4),
)


def run_rank(rank: int, processes: int, rounds: int, store: str) -> None:
    """What one process of the group does."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    held = dist.FileStore(store, processes)
    dist.init_process_group("gloo", store=held, rank=rank, world_size=processes)
    for name, make, width, layers in ROWS:
        found = _timed(make, width, layers, rounds)
        if rank == 0:
            print(f"{processes} processes | {name} | " + " | ".join(found), flush=True)
    dist.destroy_process_group()


def _timed(
    make: Callable[[int, int], tuple[Step, torch.Tensor]], width: int, layers: int, rounds: int
) -> list[str]:
    """Medians in milliseconds; each system begins a round in turn."""
    steps = []
    for options in SYSTEMS.values():
        torch.manual_seed(dist.get_rank())
        step, given = make(width, layers)
        chosen = step if options is None else plait.compile(step, options=options)
        for _ in range(4):
            chosen(given)
        steps.append((chosen, given))
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(rounds):
        for place in range(len(steps)):
            n = (place + turn) % len(steps)
            step, given = steps[n]
            dist.barrier()
            began = time.perf_counter()
            step(given)
            dist.barrier()
            times[n].append(time.perf_counter() - began)
    medians = [1e3 * statistics.median(each) for each in times]
    return [f"{name} {value:.1f}" for name, value in zip(SYSTEMS, medians, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectives", description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=31)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = (chosen.processes, chosen.rounds, f"{folder}/store")
        multiprocessing.spawn(run_rank, given, nprocs=chosen.processes)


if __name__ == "__main__":
    main()
