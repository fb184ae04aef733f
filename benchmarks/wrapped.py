"""Training steps of modules that torch spreads over processes: eager, plait and `torch.compile`.

`python -m benchmarks.wrapped --processes 2 --device cuda --rounds 20` prints rows of milliseconds,
each the median over rounds in which the systems take turns. With `--device cuda` each process has a
GPU of its own, and they talk by NCCL; else by gloo.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import plait

Compile = Callable[[torch.nn.Module], torch.nn.Module]

SYSTEMS: dict[str, Compile] = {
    "eager": lambda module: module,
    "plait": plait.compile,
    "torch.compile": torch.compile,
}
HEAD = 64


class Attention(torch.nn.Module):
    """Causal attention, heads of 64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            torch.nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        query, key, value = (
            part(x).view(rows, length, -1, HEAD).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(rows, length, -1))  # type: ignore[no-any-return]  # a module's result


class Feed(torch.nn.Module):
    """Gated linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]  # a module's result


class Block(torch.nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.feed = Attention(width), Feed(width)
        self.before, self.between = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]  # a module's result


class Net(torch.nn.Module):
    """Layers one after another."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def data_parallel(net: Net, compile_module: Compile, device: str) -> torch.nn.Module:
    """`DistributedDataParallel`, compiled with its net."""
    return compile_module(DistributedDataParallel(net))


def fully_sharded(net: Net, compile_module: Compile, device: str) -> torch.nn.Module:
    """`fully_shard` of each layer, which is compiled, and of the net."""
    for n, block in enumerate(net.blocks):
        net.blocks[n] = compile_module(block)
        fully_shard(net.blocks[n])
    fully_shard(net)
    return net


def tensor_parallel(net: Net, compile_module: Compile, device: str) -> torch.nn.Module:
    """Heads and hidden features by processes; the net is compiled."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    columns = ("attention.query", "attention.key", "attention.value", "feed.gate", "feed.up")
    for block in net.blocks:
        plan = {name: ColwiseParallel() for name in columns}
        rows = {name: RowwiseParallel() for name in ("attention.out", "feed.down")}
        parallelize_module(block, mesh, {**plan, **rows})
    return compile_module(net)


Spread = Callable[[Net, Compile, str], torch.nn.Module]
ROWS: dict[str, Spread] = {
    each.__name__: each for each in (data_parallel, fully_sharded, tensor_parallel)
}
SIZES = {"cpu": (256, 4, 4, 64), "cuda": (2048, 8, 8, 512)}
"""Width, layers, rows of the batch, and the length of each."""


def run_rank(
    rank: int, processes: int, rounds: int, device: str, rows: Sequence[str], store: str
) -> None:
    """What one process of the group does."""
    warnings.filterwarnings("ignore")
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    held = dist.FileStore(store, processes)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=held, rank=rank, world_size=processes)
    for row in rows:
        found = _timed(ROWS[row], rounds, device)
        if rank == 0:
            cells = " | ".join(f"{name} {ms:.2f}" for name, ms in found.items())
            print(f"{processes} processes | {row} | {cells} ms", flush=True)
    dist.destroy_process_group()


def _timed(spread: Spread, rounds: int, device: str) -> dict[str, float]:
    """Medians in milliseconds, by system; each begins a round in turn."""
    width, layers, rows, length = SIZES[device]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    x = torch.randn(rows, length, width, device=device, dtype=dtype)
    steps: dict[str, Callable[[], None]] = {}
    for name, compile_module in SYSTEMS.items():
        torch.manual_seed(0)
        net = Net(width, layers).to(device, dtype)
        steps[name] = _step(spread(net, compile_module, device), net, x)
        for _ in range(4):
            steps[name]()
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for n in range(rounds):
        first = n % len(names)
        for name in (*names[first:], *names[:first]):
            _meet(device)
            start = time.perf_counter()
            steps[name]()
            _wait(device)
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in times.items()}


def _step(model: torch.nn.Module, net: Net, x: torch.Tensor) -> Callable[[], None]:
    parameters = list(net.parameters())
    spread = [each for each in parameters if isinstance(each, DTensor)]
    plain = [each for each in parameters if not isinstance(each, DTensor)]
    groups = [{"params": each} for each in (spread, plain) if each]  # no call takes both
    optimizer = torch.optim.AdamW(groups, 1e-4, foreach=True)

    def step() -> None:
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _meet(device: str) -> None:
    dist.barrier()
    _wait(device)


def main() -> None:
    """Starts the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=SIZES, default="cpu")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=[*ROWS], metavar="ROW")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = (chosen.processes, chosen.rounds, chosen.device, chosen.only, f"{folder}/store")
        multiprocessing.spawn(run_rank, given, nprocs=chosen.processes)


if __name__ == "__main__":
    main()
