"""Programs with open sizes against those of one size: `python -m benchmarks.open_sizes`.

Each row is compiled twice: for the sizes at hand alone, and with some of them left open. Both are
called in turns, at the size that the second was compiled for. The table shows the medians of a
call, the share of the static program's speed that the open one has, and how often that was
compiled for three sizes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.runner import machine

_BATCH_SECONDS = 1e-3
"""At least so long is what the clock is read around."""
_LEAST = 0.95
"""The share of speed that open sizes keep at least."""


@dataclass(frozen=True)
class Row:
    """Something to time, whose inputs have some sizes that are left open."""

    name: str
    sizes: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    """What it is called with, for a number by which its open sizes are larger."""
    open_sizes: tuple[int, ...] = (0,)
    """The dimensions of the first input that are open."""


class Softmax(nn.Module):
    """Over an open size, as over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).softmax(-1)


class Attention(nn.Module):
    """Self-attention of 4 heads, in a causal order."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mix(x).chunk(3, -1)
        heads = [each.view(batch, length, 4, width // 4).transpose(1, 2) for each in parts]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A layer of a transformer: norms before, attention and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class LanguageModel(nn.Module):
    """GPT-2 of 2 layers with a loss, from the library's own code."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_embd=256, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
        )
        self.model = GPT2LMHeadModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        if not self.training:
            return self.model(ids, use_cache=False).logits
        return self.model(ids, labels=ids, use_cache=False).loss


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512)),
        *(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)),
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


def _sequences(more: int) -> tuple[Tensor, ...]:
    return (torch.randn(4 + more, 128 + 8 * more, 256),)


ROWS = (
    Row("MLP", "64×256", _mlp, lambda more: (torch.randn(64 + more, 256),)),
    Row("softmax", "2048×512", Softmax, lambda m: (torch.randn(2048 + m, 512 + 8 * m),), (0, 1)),
    Row(
        *("layer norm", "2048×512", lambda: nn.LayerNorm(512)),
        lambda more: (torch.randn(2048 + more, 512),),
    ),
    Row("attention block", "4×128×256", lambda: Attention(256), _sequences, (0, 1)),
    Row("transformer layer", "4×128×256", lambda: Layer(256), _sequences, (0, 1)),
    Row("CNN", "8×3×64×64", _cnn, lambda more: (torch.randn(8 + more, 3, 64, 64),)),
    Row(
        *("GPT-2, 2 layers", "2×128", LanguageModel),
        lambda more: (torch.randint(0, 50257, (2 + more, 128 + 8 * more)),),
        (0, 1),
    ),
)


def time_row(row: Row, seconds: float, *, training: bool) -> dict[str, Any]:
    """Milliseconds of a step of both programs, and how often the open one was compiled."""
    import plait

    torch.manual_seed(0)
    model = row.model().train(training)
    inputs = row.inputs(0)
    fixed = plait.compile(model, dynamic=False)
    left_open = plait.compile(model, dynamic=None)

    def opened(more: int) -> tuple[Tensor, ...]:
        given = tuple(each.clone() for each in row.inputs(more))
        for dim in row.open_sizes:
            plait.mark_dynamic(given[0], dim)
        return given

    marked = opened(0)
    programs = {
        "static": lambda: _step(model, fixed, inputs, training=training),
        "open": lambda: _step(model, left_open, marked, training=training),
    }
    found: dict[str, Any] = {"ms": _interleaved(programs, seconds)}
    for more in (1, 2):
        _step(model, left_open, opened(more), training=training)
    graphs = [each for each in plait.report(left_open).graphs if ".backward" not in each.name]
    found["programs"] = len(graphs)
    found["eager"] = [str(each.reason) for each in graphs if each.reason is not None]
    return found


def _step(
    model: nn.Module, function: Callable[..., Any], inputs: Sequence[Tensor], *, training: bool
) -> None:
    if not training:
        with torch.no_grad():
            function(*inputs)
        return
    model.zero_grad(set_to_none=True)
    function(*inputs).square().mean().backward()


def _interleaved(programs: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Medians, in milliseconds; the programs take turns, so that drift meets both alike."""
    counts = {name: _batch(run) for name, run in programs.items()}
    count = max(counts.values())
    times: dict[str, list[float]] = {name: [] for name in programs}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times["open"]) < 10:
        for name, run in programs.items():
            start = time.perf_counter()
            for _ in range(count):
                run()
            times[name].append(1e3 * (time.perf_counter() - start) / count)
    return {name: statistics.median(spent) for name, spent in times.items()}


def _batch(run: Callable[[], None]) -> int:
    """How many calls take long enough to be timed."""
    for _ in range(5):
        run()
    start = time.perf_counter()
    run()
    return max(1, round(_BATCH_SECONDS / max(time.perf_counter() - start, 1e-9)))


def markdown(results: dict[str, dict[str, dict[str, Any]]], told: str) -> str:
    """The table, with the shares of speed that are too small in bold."""
    lines = [
        told,
        "",
        "| | sizes | static, ms | open, ms | speed kept | programs for 3 sizes |",
        "|---|---|---:|---:|---:|---:|",
    ]
    sizes = {row.name: row.sizes for row in ROWS}
    for name, ways in results.items():
        for way, found in ways.items():
            static, left_open = found["ms"]["static"], found["ms"]["open"]
            share = static / left_open
            shown = f"{share:.0%}" if share >= _LEAST else f"**{share:.0%}**"
            count = "eager" if found["eager"] else str(found["programs"])
            lines.append(
                f"| {name}, {way} | {sizes[name]} | {static:.3f} | {left_open:.3f} | {shown}"
                f" | {count} |"
            )
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="names of rows; all if none is named")
    parser.add_argument("--seconds", type=float, default=3.0, help="for a row")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for row in ROWS:
        if chosen.rows and row.name not in chosen.rows:
            continue
        for way in ("inference", "training"):
            found = time_row(row, chosen.seconds, training=way == "training")
            results.setdefault(row.name, {})[way] = found
            print(f"{row.name}, {way}: {found}", file=sys.stderr, flush=True)
    table = markdown(results, f"{machine()['cpu']}, {chosen.threads} thread(s).")
    print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))
    if chosen.markdown:
        chosen.markdown.write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
