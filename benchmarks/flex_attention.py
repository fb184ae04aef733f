"""Attention with score functions and masks on a GPU: plait, torch.compile, and ATen's attention.

    python -m benchmarks.flex_attention --markdown flex_attention.md

Milliseconds of the GPU for one call, in turns in one process; the error is the largest against
float64, as a share of the largest value. Operations are those of both products for the pairs that
the mask leaves. `scaled_dot_product_attention` has no form for soft caps, and takes a window as a
matrix.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu_facts import facts

HEADS = 8
WINDOW = 512
CAP = 30.0
SYSTEMS = ("plait", "torch.compile", "sdpa")
Sizes = tuple[int, int]
SIZES: tuple[Sizes, ...] = ((4096, 64), (4096, 128))
Calls = dict[str, Callable[[], Tensor]]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Keys up to the query's."""
    return i >= j


def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The last keys up to the query's."""
    return (i >= j) & (i - j < WINDOW)


def capped(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Scores within a cap."""
    return CAP * torch.tanh(s / CAP)


def sloped(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Scores that fall with the distance."""
    return s + (j - i) * torch.exp2(-(h + 1.0))


def forms(rows: int) -> dict[str, dict[str, Any]]:
    """The arguments of `flex_attention`, by name."""
    documents = torch.arange(rows, device="cuda") * 6 // rows

    def in_document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i >= j) & (documents[i] == documents[j])

    def mask(function: Callable[..., Tensor]) -> Any:
        return create_block_mask(function, None, None, rows, rows, device="cuda")

    return {
        "plain": {},
        "causal": {"block_mask": mask(causal)},
        "window": {"block_mask": mask(window)},
        "soft cap": {"score_mod": capped},
        "soft cap, causal": {"score_mod": capped, "block_mask": mask(causal)},
        "slopes": {"score_mod": sloped},
        "documents": {"block_mask": mask(in_document)},
    }


def allowed(name: str, rows: int) -> Tensor | None:
    """The pairs that a form's mask leaves; None for all."""
    i = torch.arange(rows, device="cuda")[:, None]
    j = torch.arange(rows, device="cuda")
    if name in ("causal", "soft cap, causal"):
        return i >= j
    if name == "window":
        return (i >= j) & (i - j < WINDOW)
    if name == "documents":
        return (i >= j) & (i * 6 // rows == j * 6 // rows)
    return None


def exact(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A form in float64, head by head."""
    rows = q.shape[2]
    mask, made = allowed(name, rows), []
    distance = torch.arange(rows, device=q.device) - torch.arange(rows, device=q.device)[:, None]
    for head in range(q.shape[1]):
        a, b, c = (each[0, head].double() for each in (q, k, v))
        s = a @ b.T / math.sqrt(q.shape[-1])
        if name.startswith("soft cap"):
            s = CAP * torch.tanh(s / CAP)
        if name == "slopes":
            s = s + distance * 2.0 ** -(head + 1.0)
        if mask is not None:
            s = s.masked_fill(~mask, -math.inf)
        made.append(s.softmax(-1) @ c)
    return torch.stack(made)[None]


def systems(name: str, given: dict[str, Any], tensors: Sequence[Tensor]) -> Calls:
    """What is timed."""
    import plait

    q, k, v = tensors

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made: Tensor = flex_attention(q, k, v, **given)
        return made

    torch._dynamo.reset()
    ours, theirs = plait.compile(attend), torch.compile(attend)
    found: Calls = {"plait": lambda: ours(q, k, v), "torch.compile": lambda: theirs(q, k, v)}
    if name in ("plain", "causal"):
        is_causal = name == "causal"
        found["sdpa"] = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    elif name in ("window", "documents"):
        mask = allowed(name, q.shape[2])
        found["sdpa"] = lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return found


def measure(name: str, sizes: Sizes, rounds: int) -> dict[str, dict[str, float]]:
    """By system: milliseconds, operations per second in units of 10^12, and the error."""
    rows, depth = sizes
    draw = torch.Generator("cuda").manual_seed(0)
    shape = (1, HEADS, rows, depth)
    tensors = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=draw) for _ in range(3)
    ]
    mask = allowed(name, rows)
    pairs = rows * rows if mask is None else int(mask.sum())
    wanted = exact(name, *tensors)
    calls = systems(name, forms(rows)[name], tensors)
    found: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        for system, call in calls.items():
            error = (call().double() - wanted).abs().max() / wanted.abs().max()
            found[system] = {"error": float(error)}
        times = {system: [_milliseconds(call)] for system, call in calls.items()}
        for _ in range(rounds - 1):
            for system, call in calls.items():
                times[system].append(_milliseconds(call))
    for system, each in times.items():
        ms = statistics.median(each)
        found[system] |= {"ms": ms, "tflops": 4 * HEADS * pairs * depth / ms / 1e9}
    return found


def _milliseconds(call: Callable[[], object], times: int = 20) -> float:
    """Of the GPU for one call, of many in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times


def markdown(rows: Sequence[tuple[str, dict[str, dict[str, float]]]]) -> str:
    """A table: milliseconds, and operations per second."""
    lines = [
        f"{facts()}; {HEADS} heads, bfloat16.",
        "",
        "| | " + " | ".join(f"{system}, ms (TFLOP/s), error" for system in SYSTEMS) + " |",
        "|---" * (len(SYSTEMS) + 1) + "|",
    ]
    for label, found in rows:
        cells = [
            "{ms:.3f} ({tflops:.0f}), {error:.1e}".format(**found[system])
            if system in found
            else ""
            for system in SYSTEMS
        ]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of forms")
    parser.add_argument("--depths", nargs="*", type=int)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    rows = []
    for sizes in SIZES:
        for name in chosen.only or forms(128):
            if chosen.depths and sizes[1] not in chosen.depths:
                continue
            found = measure(name, sizes, chosen.rounds)
            print(f"{name} {sizes}: {found}", file=sys.stderr, flush=True)
            rows.append((f"{name}, {sizes[0]} x {sizes[1]}", found))
    table = markdown(rows)
    print(table)
    if chosen.markdown:
        chosen.markdown.write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
