"""A character-level GPT on a megabyte of text that ships with Python, eager and compiled.

Each system trains the same model from the same weights on the same batches, in a process of its
own, with its whole step compiled: forward, backward and AdamW. Prints losses, tokens per second and
peak memory side by side; exits 1 where plait's losses leave eager's.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import math
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

SYSTEMS = ("eager", "plait", "torch.compile")
SIZE = 1_000_000
"""Characters of text."""
BATCH, LENGTH = 16, 128
TOLERANCE = 2e-3
"""How far losses may be apart, in nats: roundings grow over the steps."""

Step = Callable[[Tensor, Tensor], Tensor]


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mixed(self.first(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(F.gelu(self.expand(self.second(x))))


class GPT(nn.Module):
    """Logits (batch, length, characters) from codes (batch, length)."""

    def __init__(self, characters: int, width: int = 256, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.codes = nn.Embedding(characters, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, codes: Tensor) -> Tensor:
        places = torch.arange(codes.shape[1], device=codes.device)
        return self.head(self.norm(self.blocks(self.codes(codes) + self.places(places))))


@dataclass(frozen=True)
class Run:
    """What one system did."""

    losses: list[float]
    seconds: list[float]
    peak_mb: float
    notes: list[str]


def text() -> str:
    """Python's licence, its Zen, and docstrings of its standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    parts = [repr(license), _zen()]
    size = sum(map(len, parts))
    for path in sorted(library.rglob("*.py")):
        if size >= SIZE:
            break
        if {"site-packages", "test", "tests", "idlelib"} & set(path.parts):
            continue
        for docstring in _docstrings(path):
            parts.append(docstring)
            size += len(docstring) + 2
    return "\n\n".join(parts)[:SIZE]


def _zen() -> str:
    source = (Path(sysconfig.get_path("stdlib")) / "this.py").read_text()
    scope: dict[str, str] = {}
    exec(source.split("\nd = ")[0], scope)  # its text only, without printing it
    code = {chr(c + base): chr((c + 13) % 26 + base) for base in (65, 97) for c in range(26)}
    return "".join(code.get(each, each) for each in scope["s"])


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found = ast.get_docstring(node)
            if found:
                yield found


def encoded(characters: str) -> tuple[Tensor, int]:
    """Codes of the text, rare characters as one, and how many codes there are."""
    kept = sorted({each for each in characters if each.isascii()})
    codes = {each: index for index, each in enumerate(kept, start=1)}
    return torch.tensor([codes.get(each, 0) for each in characters]), len(kept) + 1


def batches(codes: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random places of the text: codes, and those that follow, (BATCH, LENGTH) each."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        starts = torch.randint(len(codes) - LENGTH - 1, (BATCH,), generator=generator)
        places = starts[:, None] + torch.arange(LENGTH + 1)
        yield codes[places[:, :-1]], codes[places[:, 1:]]


def step_of(model: GPT, optimizer: torch.optim.Optimizer) -> Step:
    """The whole training step as a function of a batch."""

    def step(codes: Tensor, following: Tensor) -> Tensor:
        loss = F.cross_entropy(model(codes).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def train(system: str, steps: int) -> Run:
    """Train with one system in this process."""
    torch.manual_seed(0)
    codes, characters = encoded(text())
    model = GPT(characters).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    step, notes = step_of(model, optimizer), []
    if system == "plait":
        import plait

        step = plait.compile(step)
    elif system == "torch.compile":
        step = torch.compile(step)
    losses, seconds = [], []
    for number, batch in enumerate(batches(codes, steps)):
        if number == steps // 2:
            _forget_peak()
        start = time.perf_counter()
        loss = step(*batch)
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    if system == "plait":
        report = plait.report(step)
        notes = [
            f"{each.name} runs {each.outcome}: {each.reason}"
            for each in report.graphs
            if each.reason
        ]
        notes += [f"{len(report.graphs)} graphs, {len(report.breaks)} breaks"]
    return Run(losses, seconds, _peak_mb(), notes)


def _forget_peak() -> None:
    """Count the peak of memory from here on, so without compiling."""
    with contextlib.suppress(OSError):  # elsewhere the peak is that of the whole run
        Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    """The most memory that the process held, in MB; not a number where that is not known."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return math.nan
    line = next(each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def in_process(system: str, steps: int) -> Run:
    """Train with one system in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="char-gpt-") as folder:
        found = Path(folder) / "run.json"
        arguments = [sys.executable, __file__, "--only", system, "--steps", str(steps)]
        subprocess.run([*arguments, "--json", str(found)], check=True)
        return Run(**json.loads(found.read_text()))


def show(runs: dict[str, Run], steps: int) -> float:
    """Print the table and what is worth a note; how far plait's losses are from eager's."""
    console = Console(width=100)
    table = Table(title=f"Character GPT, {steps} steps of {BATCH} × {LENGTH}")
    for heading in ("", *runs):
        table.add_column(heading, justify="right")
    late = {name: run.seconds[steps // 2 :] for name, run in runs.items()}
    speeds = [BATCH * LENGTH / statistics.median(each) for each in late.values()]
    table.add_row("tokens a second", *(f"{each:,.0f}" for each in speeds))
    table.add_row("peak memory", *(f"{run.peak_mb:.0f} MB" for run in runs.values()))
    table.add_row("first step", *(f"{run.seconds[0]:.2f} s" for run in runs.values()))
    for number in sorted({0, steps // 4, steps // 2, steps - 1}):
        losses = (f"{run.losses[number]:.5f}" for run in runs.values())
        table.add_row(f"loss, step {number + 1}", *losses)
    console.print(table)
    for name, run in runs.items():
        for note in run.notes:
            console.print(f"{name}: {note}")
    if not {"eager", "plait"} <= runs.keys():
        return 0.0
    pairs = zip(runs["eager"].losses, runs["plait"].losses, strict=True)
    apart = max(abs(a - b) for a, b in pairs)
    console.print(f"largest difference of losses, plait and eager: {apart:.1e}")
    return apart


def draw(runs: dict[str, Run], path: Path) -> None:
    """The loss curves as a picture."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for (name, run), width in zip(runs.items(), (5, 2, 1), strict=False):
        axes.plot(run.losses, label=name, linewidth=width, alpha=0.8)
    axes.set(xlabel="step", ylabel="loss, nats a character")
    axes.legend(frameon=False)
    figure.savefig(path, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--picture", type=Path, help="draw the losses here (needs matplotlib)")
    parser.add_argument("--only", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only:
        chosen.json.write_text(json.dumps(asdict(train(chosen.only, chosen.steps))))
        return 0
    runs = {system: in_process(system, chosen.steps) for system in chosen.systems}
    apart = show(runs, chosen.steps)
    if chosen.picture:
        draw(runs, chosen.picture)
    return int(apart > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
