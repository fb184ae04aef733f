"""Products of matrices on a GPU: `python -m benchmarks.gpu_products --markdown table.md`.

Each program, a product alone or with what follows it, runs in turns in one process: by eager, that
is cuBLAS and a kernel for each operator; by plait as by rule, which calls cuBLAS and computes the
rest in one kernel; by kernels of plait's own, in blocks by rule and in the fastest ones; and as
`mode="max-autotune"` chooses. Errors are the largest against float32 (of float32: float64), as
shares of the largest value.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_arguments import chosen, parser

_BATCH_SECONDS = 5e-3
_TURNS = 7
_OWN = {"scheduler.kernel_products": "*"}
_TIMED = {**_OWN, "triton.autotune": True}
SYSTEMS: Mapping[str, Mapping[str, Any] | None] = {
    "eager": None,
    "plait": {},
    "kernels by rule": {"options": _OWN},
    "kernels timed": {"options": _TIMED},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
"""By name, the arguments of `plait.compile`; None for eager."""


@dataclass(frozen=True)
class Row:
    """A program and its inputs."""

    name: str
    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    flop: int
    dtype: torch.dtype = torch.bfloat16


def plain(x: Tensor, w: Tensor) -> Tensor:
    """A layer without bias: the weight's rows are the result's columns."""
    return F.linear(x, w)


def turned(x: Tensor, w: Tensor) -> Tensor:
    """As gradients of weights are."""
    return x.t() @ w


def untransposed(x: Tensor, w: Tensor) -> Tensor:
    """Both in memory as they are multiplied."""
    return x @ w


def bias_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The first half of a feed-forward layer."""
    return F.gelu(F.linear(x, w, b))


def bias_residual(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """The second half."""
    return y + F.linear(x, w, b)


def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """The gate of a feed-forward layer of Llama's."""
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def dequantized(x: Tensor, w: Tensor) -> Tensor:
    """A weight of bytes."""
    return x @ w.to(x.dtype)


def scaled(x: Tensor, w: Tensor, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """Floats of 8 bits, with a scale for each row and column."""
    if x.dtype is torch.float32:
        return (x @ w.t()) * of_rows * of_columns
    return torch._scaled_mm(x, w.t(), of_rows, of_columns, out_dtype=torch.bfloat16)


def experts(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Rows in groups, each with a matrix of its own."""
    if x.dtype is torch.float32:
        starts = [0, *ends.tolist()]
        parts = [x[a:b] @ w[n].t() for n, (a, b) in enumerate(pairwise(starts))]
        return F.silu(torch.cat(parts))
    return F.silu(torch._grouped_mm(x, w.transpose(1, 2), ends))


def experts_gradient(x: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
    """Of the experts' matrices: each group of rows of both multiplied."""
    if x.dtype is torch.float32:
        starts = [0, *ends.tolist()]
        return torch.stack([x[a:b].t() @ grad[a:b] for a, b in pairwise(starts)])
    return torch._grouped_mm(x.t(), grad, ends)


def convolved(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """A convolution, a batch norm as it is used, and a ReLU."""
    scale, shift = (each[:, None, None] for each in (scale, shift))
    return F.relu(F.conv2d(x, w, padding=w.shape[-1] // 2) * scale + shift)


def convolved_residual(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor, y: Tensor) -> Tensor:
    """The end of a block of ResNet."""
    scale, shift = (each[:, None, None] for each in (scale, shift))
    return F.relu(F.conv2d(x, w) * scale + shift + y)


_IMAGES = (
    ("1x1", 56, 256, 64, 1),
    ("1x1, deep", 14, 1024, 256, 1),
    ("3x3", 56, 64, 64, 3),
    ("3x3, deep", 14, 256, 256, 3),
)
"""By name: the side of an image, its channels, the result's, and the side of windows."""
_SIZES = (
    ("GPT-2 up", 8192, 768, 3072),
    ("GPT-2 down", 8192, 3072, 768),
    ("GPT-2 attention", 8192, 768, 768),
    ("Llama up", 8192, 2048, 8192),
    ("Llama down", 8192, 8192, 2048),
    ("large", 8192, 8192, 8192),
    ("16 rows", 16, 4096, 4096),
    ("16 rows, long", 16, 14336, 4096),
    ("64 rows", 64, 4096, 4096),
    ("1 tile, long", 128, 65536, 128),
    ("odd", 4001, 1003, 2005),
)
"""By name: rows, terms and columns."""


def rows() -> Iterator[Row]:
    """All programs."""
    for name, m, k, n in _SIZES:
        flop = 2 * m * k * n
        shown = f"{name}, {m}x{k}x{n}"
        yield Row(shown, plain, ((m, k), (n, k)), flop)
        yield Row(f"{shown}, bias and GELU", bias_gelu, ((m, k), (n, k), (n,)), flop)
    m, k, n = 8192, 3072, 768
    shapes = ((m, k), (n, k), (n,), (m, n))
    yield Row(f"bias and residual, {m}x{k}x{n}", bias_residual, shapes, 2 * m * k * n)
    m, k, n = 8192, 2048, 5632
    yield Row(f"SwiGLU, {m}x{k}x{n}", swiglu, ((m, k), (n, k), (n, k)), 4 * m * k * n)
    m, k, n = 8192, 2048, 2048
    yield Row(f"gradient of a weight, {m}x{k}x{n}", turned, ((m, k), (m, n)), 2 * m * k * n)
    yield Row(f"not turned, {m}x{k}x{n}", untransposed, ((m, k), (k, n)), 2 * m * k * n)
    b, m, k, n = 96, 1024, 64, 1024
    yield Row(f"batches, {b}x{m}x{k}x{n}", untransposed, ((b, m, k), (b, k, n)), 2 * b * m * k * n)
    m, k, n = 4096, 1024, 1024
    yield Row(f"f32, {m}x{k}x{n}", plain, ((m, k), (n, k)), 2 * m * k * n, torch.float32)
    yield from _other_rows()
    m, k, n = 16, 4096, 4096
    yield Row(f"weight of bytes, {m}x{k}x{n}", dequantized, ((m, k), (k, n)), 2 * m * k * n)
    yield from _image_rows()


def _other_rows() -> Iterator[Row]:
    """Rows of odd length, floats of 8 bits, and experts."""
    m, k, n = 8192, 768, 50257
    yield Row(f"logits, {m}x{k}x{n}", plain, ((m, k), (n, k)), 2 * m * k * n)
    for m, k, n in ((4096, 4096, 4096), (8192, 4096, 8192)):
        shapes = ((m, k), (n, k), (m, 1), (1, n))
        yield Row(f"floats of 8 bits, {m}x{k}x{n}", scaled, shapes, 2 * m * k * n)
    for groups, m, k, n in ((8, 8192, 2048, 4096), (64, 16384, 2048, 2048)):
        shapes = ((m, k), (groups, n, k), (groups,))
        yield Row(f"{groups} experts, {m}x{k}x{n}, SiLU", experts, shapes, 2 * m * k * n)
        shapes = ((m, k), (m, n), (groups,))
        name = f"gradient of {groups} experts, {m}x{k}x{n}"
        yield Row(name, experts_gradient, shapes, 2 * m * k * n)


def _image_rows() -> Iterator[Row]:
    """Layers of ResNet-50, of 64 images with channels last."""
    for name, side, channels, made, window in _IMAGES:
        shapes = (64, channels, side, side), (made, channels, window, window), (made,), (made,)
        flop = 2 * 64 * side * side * channels * made * window * window
        shown = f"convolution {name}, {side}x{side}, {channels} to {made}"
        yield Row(f"{shown}, batch norm, ReLU", convolved, shapes, flop)
    for side, channels, made in ((56, 64, 256), (14, 256, 1024)):
        shapes = (64, channels, side, side), (made, channels, 1, 1), (made,), (made,)
        flop = 2 * 64 * side * side * channels * made
        shown = f"convolution 1x1, {side}x{side}, {channels} to {made}, batch norm, residual, ReLU"
        yield Row(shown, convolved_residual, (*shapes, (64, made, side, side)), flop)


def _inputs(row: Row) -> list[Tensor]:
    made = [torch.randn(shape, device="cuda").to(row.dtype) for shape in row.shapes]
    if len(row.shapes[0]) == 4:
        made = [
            each.contiguous(memory_format=torch.channels_last) if each.dim() == 4 else each
            for each in made
        ]
        made[1] *= made[1][0].numel() ** -0.5
        return made
    scale = row.shapes[0][-1] ** -0.5
    made[1:3] = [each * scale for each in made[1:3]]
    if row.function is scaled:
        exact = [torch.rand(shape, device="cuda") + 0.5 for shape in row.shapes[2:]]
        return [each.to(torch.float8_e4m3fn) for each in made[:2]] + exact
    if row.function in (experts, experts_gradient):
        (count,) = row.shapes[2]
        ends = torch.arange(1, count + 1, device="cuda") * row.shapes[0][0] // count
        return [*made[:2], ends.to(torch.int32)]
    if row.function is dequantized:
        made[1] = torch.randint(-127, 128, row.shapes[1], device="cuda", dtype=torch.int8)
    return made


def _compiled(row: Row, system: str) -> Callable[..., Tensor]:
    import plait

    arguments = SYSTEMS[system]
    return row.function if arguments is None else plait.compile(row.function, **arguments)


def _seconds(run: Callable[[], object], calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls


def measured(row: Row, systems: Sequence[str]) -> dict[str, tuple[float, float]]:
    """For each system the milliseconds of a call, the median of turns, and the error."""
    inputs = _inputs(row)
    wide = torch.float64 if row.dtype is torch.float32 else torch.float32
    with torch.no_grad():
        exact = row.function(*(x.to(wide) if x.is_floating_point() else x for x in inputs))
        runs, errors, counts = {}, {}, {}
        for system in systems:
            function = _compiled(row, system)
            found = function(*inputs)
            difference = (found.to(wide) - exact).abs().max() / exact.abs().max()
            errors[system] = float(difference)
            runs[system] = lambda function=function: function(*inputs)
            for _ in range(5):
                runs[system]()
            counts[system] = max(int(_BATCH_SECONDS / _seconds(runs[system], 3)), 1)
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        for _ in range(_TURNS):
            for system, run in runs.items():
                seconds[system].append(_seconds(run, counts[system]))
    return {each: (statistics.median(seconds[each]) * 1e3, errors[each]) for each in systems}


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table."""
    given = parser("gpu_products", __doc__, SYSTEMS).parse_args(arguments)
    systems = given.systems
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: ms, TFLOP/s, error",
        "",
        f"| program | {' | '.join(systems)} |",
        f"|---|{'---|' * len(systems)}",
    ]
    print("\n".join(lines), flush=True)
    names = chosen([row.name for row in rows()], given.names)
    for row in rows():
        if row.name not in names:
            continue
        try:
            found = measured(row, systems)
        except Exception as error:  # one row's failure leaves the others
            print(f"| {row.name} | {type(error).__name__}: {error} |", flush=True)
            continue
        cells = [
            f"{ms:.4f}, {row.flop / ms / 1e9:.0f}, {error:.0e}" for ms, error in found.values()
        ]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if given.markdown is not None:
        given.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
