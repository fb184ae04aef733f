"""Attention with score functions and masks on a GPU: plait, torch.compile, and ATen's attention.

    python -m benchmarks.flex_attention --markdown flex_attention.md
    python -m benchmarks.flex_attention --backward --markdown flex_attention_backward.md

Milliseconds of the GPU for one call, in turns in one process; the error is the largest against
float64, as a share of the largest value. Operations are those of both products for the pairs that
the mask leaves; with `--backward`, which times a forward and its backward, those of seven: scores
are computed twice. Its error is the largest of the three gradients', and the memory the most that
is allocated beside inputs. `scaled_dot_product_attention` has no form for soft caps, and takes a
window as a matrix.
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
Found = dict[str, dict[str, float]]


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
    return torch.stack([exact_head(name, q, k, v, head) for head in range(q.shape[1])])[None]


def exact_gradients(name: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> list[Tensor]:
    """The gradients of queries, keys and values in float64, head by head."""
    made = []
    for head in range(q.shape[1]):
        wide = [each.detach().double().requires_grad_() for each in (q, k, v)]
        out = exact_head(name, wide[0], wide[1], wide[2], head)
        found = torch.autograd.grad(out, wide, g[0, head].double())
        made.append([each[0, head] for each in found])
    return [torch.stack(each)[None] for each in zip(*made, strict=True)]


def exact_head(name: str, q: Tensor, k: Tensor, v: Tensor, head: int) -> Tensor:
    """A form's result for one head in float64."""
    rows = q.shape[2]
    mask = allowed(name, rows)
    place = torch.arange(rows, device=q.device)
    a, b, c = (each[0, head].double() for each in (q, k, v))
    s = a @ b.T / math.sqrt(q.shape[-1])
    if name.startswith("soft cap"):
        s = CAP * torch.tanh(s / CAP)
    if name == "slopes":
        s = s + (place - place[:, None]) * 2.0 ** -(head + 1.0)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    return s.softmax(-1) @ c


def systems(name: str, given: dict[str, Any], tensors: Sequence[Tensor]) -> Calls:
    """What is timed."""
    import plait

    q, k, v = tensors

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made: Tensor = flex_attention(q, k, v, **given)
        return made

    torch._dynamo.reset()
    recomputing = {"attention_gradients": True}
    ours, theirs = plait.compile(attend, options=recomputing), torch.compile(attend)
    found: Calls = {"plait": lambda: ours(q, k, v), "torch.compile": lambda: theirs(q, k, v)}
    if name in ("plain", "causal"):
        is_causal = name == "causal"
        found["sdpa"] = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    elif name in ("window", "documents"):
        mask = allowed(name, q.shape[2])
        found["sdpa"] = lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return found


def measure(name: str, sizes: Sizes, rounds: int, *, backward: bool) -> Found:
    """By system: milliseconds, operations per second in units of 10^12, the error, and (with
    `backward`) MB of memory."""
    rows, depth = sizes
    draw = torch.Generator("cuda").manual_seed(0)
    shape = (1, HEADS, rows, depth)
    q, k, v, g = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=draw) for _ in range(4)
    )
    for each in (q, k, v):
        each.requires_grad_(backward)
    mask = allowed(name, rows)
    pairs = rows * rows if mask is None else int(mask.sum())
    calls = systems(name, forms(rows)[name], (q, k, v))
    if backward:
        wanted = exact_gradients(name, q, k, v, g)
        calls = {system: _with_backward(call, (q, k, v), g) for system, call in calls.items()}
    else:
        with torch.no_grad():
            wanted = [exact(name, q, k, v)]
        calls = {system: _as_list(call) for system, call in calls.items()}
    found: Found = {}
    with torch.set_grad_enabled(backward):
        for system, call in calls.items():
            both = zip(call(), wanted, strict=True)
            errors = [float((a.double() - b).abs().max() / b.abs().max()) for a, b in both]
            found[system] = {"error": max(errors), "MB": _megabytes(call)}
        times = {system: [_milliseconds(call)] for system, call in calls.items()}
        for _ in range(rounds - 1):
            for system, call in calls.items():
                times[system].append(_milliseconds(call))
    operations = (14 if backward else 4) * HEADS * pairs * depth
    for system, taken in times.items():
        ms = statistics.median(taken)
        found[system] |= {"ms": ms, "tflops": operations / ms / 1e9}
    return found


def _with_backward(
    call: Callable[[], Tensor], tensors: Sequence[Tensor], g: Tensor
) -> Callable[[], Sequence[Tensor]]:
    return lambda: torch.autograd.grad(call(), tensors, g)


def _as_list(call: Callable[[], Tensor]) -> Callable[[], Sequence[Tensor]]:
    return lambda: [call()]


def _megabytes(call: Callable[[], object]) -> float:
    """The most memory that a call has allocated."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


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


def markdown(rows: Sequence[tuple[str, Found]], *, backward: bool) -> str:
    """A table: milliseconds, operations per second, errors and (with `backward`) memory."""
    head, form = "ms (TFLOP/s), error", "{ms:.3f} ({tflops:.0f}), {error:.1e}"
    if backward:
        head, form = f"{head}, MB", f"{form}, {{MB:.0f}}"
    lines = [
        f"{facts()}; {HEADS} heads, bfloat16{', forward and backward' if backward else ''}.",
        "",
        "| | " + " | ".join(f"{system}, {head}" for system in SYSTEMS) + " |",
        "|---" * (len(SYSTEMS) + 1) + "|",
    ]
    for label, found in rows:
        cells = [form.format(**found[system]) if system in found else "" for system in SYSTEMS]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of forms")
    parser.add_argument("--depths", nargs="*", type=int)
    parser.add_argument("--backward", action="store_true", help="time forward and backward")
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    rows = []
    for sizes in SIZES:
        for name in chosen.only or forms(128):
            if chosen.depths and sizes[1] not in chosen.depths:
                continue
            found = measure(name, sizes, chosen.rounds, backward=chosen.backward)
            print(f"{name} {sizes}: {found}", file=sys.stderr, flush=True)
            rows.append((f"{name}, {sizes[0]} x {sizes[1]}", found))
    table = markdown(rows, backward=chosen.backward)
    print(table)
    if chosen.markdown:
        chosen.markdown.write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
