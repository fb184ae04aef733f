"""Hand-written attention in eager, by plait as products and as calls, and by `torch.compile`.

    python -m benchmarks.attention --device cuda --markdown attention.md

Forward alone and with backward, in turns in one process; the memory is the most that one step
takes above its inputs; the error is the largest against eager in float64, as a share of the largest
value.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.runner import machine

Sizes = tuple[int, int, int, int]
Inputs = list[torch.Tensor]
SIZES: dict[str, tuple[Sizes, ...]] = {
    "cuda": ((16, 12, 128, 64), (8, 16, 1024, 64), (2, 16, 4096, 128)),
    "cpu": ((4, 8, 64, 64), (4, 8, 256, 64), (2, 8, 1024, 64)),
}
DTYPES = {"cuda": (torch.bfloat16, torch.float32), "cpu": (torch.float32,)}
SYSTEMS = ("eager", "products", "calls", "torch.compile")


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """No mask."""
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A triangle that the program makes."""
    scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]))
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    return F.softmax(scores.masked_fill(later, float("-inf")), dim=-1) @ v


def masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, triangle: torch.Tensor
) -> torch.Tensor:
    """A triangle that the program is given, as a buffer is."""
    scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]))
    return F.softmax(scores.masked_fill(triangle == 0, float("-inf")), dim=-1) @ v


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A mask that is added, softmax in float32."""
    scores = torch.matmul(q, k.transpose(2, 3)) * (1 / math.sqrt(q.shape[-1])) + bias
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def shared_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal, four queries to each head of keys and values."""
    batch, heads, rows, width = q.shape
    k, v = (
        each[:, : heads // 4, None]
        .expand(batch, heads // 4, 4, rows, width)
        .reshape(batch, heads, rows, width)
        for each in (k, v)
    )
    return causal(q, k, v)


FORMS: tuple[Callable[..., torch.Tensor], ...] = (plain, causal, masked, biased, shared_heads)


def inputs_of(form: Callable[..., Any], sizes: Sizes, dtype: torch.dtype, device: str) -> Inputs:
    """Queries, keys, values, and the mask if the form has one."""
    draw = torch.Generator(device).manual_seed(0)
    made = [torch.randn(sizes, device=device, dtype=dtype, generator=draw) for _ in range(3)]
    batch, _, rows, _ = sizes
    if form is masked:
        made.append(torch.ones(1, 1, rows, rows, device=device).tril())
    if form is biased:
        lowest = torch.full((batch, 1, rows, rows), torch.finfo(dtype).min, device=device)
        made.append(lowest.to(dtype).triu(1))
    return made


def measure(
    form: Callable[..., torch.Tensor], sizes: Sizes, dtype: torch.dtype, device: str, rounds: int
) -> dict[str, dict[str, float]]:
    """By system: milliseconds forward and with backward, megabytes of both, and the error."""
    import plait

    given = inputs_of(form, sizes, dtype, device)
    trained = [*(each.clone().requires_grad_(True) for each in given[:3]), *given[3:]]
    torch._dynamo.reset()
    systems: dict[str, Callable[..., torch.Tensor]] = {
        "eager": form,
        "products": plait.compile(_own(form), options={"attention_calls": False}),
        "calls": plait.compile(_own(form), options={"attention_calls": True}),
        "torch.compile": torch.compile(_own(form)),
    }
    found: dict[str, dict[str, float]] = {name: {} for name in systems}
    exact = _exact(form, trained) if sizes[2] <= 1024 else None
    for name, run in systems.items():
        got = _results(run, trained)
        if exact is not None:
            found[name]["error"] = max(map(_error, got, exact))
        if device == "cuda":
            found[name]["megabytes"] = _megabytes(lambda run=run: _results(run, trained))
        with torch.no_grad():
            run(*given)
    del exact
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for kind, inputs in (("forward", given), ("training", trained)):
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(rounds):
            for name, run in systems.items():
                times[name].append(_seconds(run, inputs, wait))
        for name, each in times.items():
            found[name][kind] = 1e3 * statistics.median(each)
    return found


def _own(form: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of its own, so that systems share no code object's caches."""
    return lambda *inputs: form(*inputs)


def _results(run: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]) -> Inputs:
    made = run(*inputs)
    given = torch.full_like(made, 0.5)
    return [made.detach(), *torch.autograd.grad(made, list(inputs[:3]), given)]


def _exact(form: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]) -> Inputs:
    wide = [each.detach().double().requires_grad_(each.requires_grad) for each in inputs]
    return _results(form, wide)


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


def _megabytes(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _seconds(
    run: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], wait: Callable[[], None]
) -> float:
    """Of one step, in a batch of three."""
    trains = inputs[0].requires_grad
    with torch.set_grad_enabled(trains):
        wait()
        started = time.perf_counter()
        for _ in range(3):
            _results(run, inputs) if trains else run(*inputs)
        wait()
    return (time.perf_counter() - started) / 3


def markdown(rows: Sequence[tuple[str, dict[str, dict[str, float]]]], device: str) -> str:
    """A table for each measure."""
    name = torch.cuda.get_device_name() if device == "cuda" else machine()["cpu"]
    lines = [f"{name}, torch {machine()['torch']}, plait {machine()['plait']}", ""]
    titles = {
        "forward": "Forward, milliseconds",
        "training": "Forward and backward, milliseconds",
        "megabytes": "Memory of forward and backward, MB",
        "error": "Error",
    }
    for kind, title in titles.items():
        shown = [(label, found) for label, found in rows if kind in found["eager"]]
        if not shown:
            continue
        lines += [f"## {title}", "", "| | " + " | ".join(SYSTEMS) + " |"]
        lines.append("|---" * (len(SYSTEMS) + 1) + "|")
        form = "{:.1e}" if kind == "error" else "{:.0f}" if kind == "megabytes" else "{:.3f}"
        for label, found in shown:
            cells = [form.format(found[system][kind]) for system in SYSTEMS]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=tuple(SIZES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    rows = []
    for dtype in DTYPES[chosen.device]:
        for sizes in SIZES[chosen.device]:
            for form in FORMS:
                label = f"{str(dtype)[6:]}, {form.__name__.replace('_', ' ')}, {sizes}"
                found = measure(form, sizes, dtype, chosen.device, chosen.rounds)
                print(f"{label}: {found}", file=sys.stderr, flush=True)
                rows.append((label, found))
                if chosen.device == "cuda":
                    torch.cuda.empty_cache()
    table = markdown(rows, chosen.device)
    print(table)
    if chosen.markdown:
        chosen.markdown.write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
