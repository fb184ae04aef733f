"""Worst errors of the kernels' elementary functions, as Markdown.

float32 functions of one argument are compared with float64 over every `stride`-th of the
2^32 bit patterns (1: exhaustively), two-argument functions and float64 with mpmath on random
values. An error is in units of the last place of the exact result (subnormal results: 2^-149
or 2^-1074). Special values are compared with ATen.

    python conformance/vector_math.py [--stride 101] [--samples 2000]
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath
import torch
from torch import Tensor

from plait_cpp_codegen import Executable, build
from plait_ir_lowering import (
    Buffer,
    Definition,
    Device,
    DType,
    Graph,
    Layout,
    Load,
    Op,
    Pointwise,
    TensorRef,
    Var,
)
from plait_scheduler import schedule

CHUNK = 1 << 20
VECTOR = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf", "erfc"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("sqrt", "rsqrt"),
)
BY_DOUBLES = ("lgamma",)
BINARY = ("pow", "atan2", "hypot")
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0)

EXACT: dict[str, Callable[..., mpmath.mpf]] = {
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "pow": mpmath.power,
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))),
}


@dataclass(slots=True)
class Worst:
    """The largest error seen, where, and results that are finite, infinite or NaN wrongly."""

    ulps: float = 0.0
    at: str = ""
    wrong: int = 0

    def update(self, errors: Tensor, wrong: Tensor, inputs: Sequence[Tensor]) -> None:
        self.wrong += int(wrong.sum())
        place = int(errors.argmax())
        if float(errors[place]) > self.ulps:
            self.ulps = float(errors[place])
            self.at = ", ".join(f"{float(x[place]):.8g}" for x in inputs)


def graph(names: Sequence[str], dtype: DType, inputs: int, length: int) -> Graph:
    """A graph of `inputs` vectors, one result for each function."""
    cpu, layout, i = Device("cpu"), Layout.of([length]), Var("i0", length)
    sources = tuple(Buffer(f"x{n}", dtype, cpu, layout) for n in range(inputs))
    loads = [Load(source.name, [i.expr], dtype) for source in sources]
    definitions = tuple(
        Definition((Buffer(name, dtype, cpu, layout),), Pointwise((i,), Op(name, loads)))
        for name in names
    )
    return Graph("functions", sources, definitions, tuple(TensorRef(name) for name in names))


def program(names: Sequence[str], dtype: DType, inputs: int, length: int) -> Executable:
    """What runs the graph of these functions."""
    executable = build(schedule(graph(names, dtype, inputs, length)))
    if executable.fallback_reason is not None:
        raise SystemExit(executable.fallback_reason)
    return executable


def aten(name: str, *inputs: Tensor) -> Tensor:
    """The same function of ATen."""
    result: Tensor = getattr(torch, name)(*inputs)
    return result


def errors32(actual: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of float32 results in ulps of the float64 ones; which are not finite wrongly."""
    rounded = exact.float()
    exponents = (rounded.view(torch.int32) >> 23 & 0xFF).clamp(min=1).to(torch.int64)
    ulp = (exponents - 150 + 1023 << 52).view(torch.float64)
    errors = (actual.double() - exact).abs() / ulp
    both = rounded.isfinite() & actual.isfinite()
    same = (rounded == actual) | (rounded.isnan() & actual.isnan())
    # at the edge of overflow, either side is one ulp off
    edge = (rounded.abs() >= 3.4028232e38) & (actual.abs() >= 3.4028232e38)
    return torch.where(both, errors, 0.0), ~(both | same | edge)


def sweep32(names: Sequence[str], stride: int) -> dict[str, Worst]:
    """Every `stride`-th float32."""
    run = program(names, DType.f32, 1, CHUNK)
    found = {name: Worst() for name in names}
    steps = torch.arange(CHUNK, dtype=torch.int64) * stride
    for start in range(0, 1 << 32, CHUNK * stride):
        patterns = steps + start
        patterns = torch.where(patterns < 1 << 32, patterns, 0)
        x = torch.where(patterns < 1 << 31, patterns, patterns - (1 << 32)).to(torch.int32)
        x = x.view(torch.float32)
        wide = x.double()
        for name, actual in zip(names, run(x), strict=True):
            assert isinstance(actual, Tensor)
            found[name].update(*errors32(actual, aten(name, wide)), [x])
    return found


def exact(name: str, *values: float) -> mpmath.mpf | None:
    """The exact value; None where it is not a real number."""
    function = EXACT.get(name) or getattr(mpmath, name)
    try:
        value = function(*map(mpmath.mpf, values))
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return value if isinstance(value, mpmath.mpf) and mpmath.isfinite(value) else None


def error_of(actual: float, value: mpmath.mpf, digits: int, smallest: int) -> float:
    """Of a result whose type has `digits` bits and 2^smallest as its least number, in ulps."""
    exponent = mpmath.frexp(value)[1] - digits if value else smallest
    return float(abs(mpmath.mpf(actual) - value) / mpmath.ldexp(1, max(exponent, smallest)))


def arguments(name: str, samples: int, wide: bool) -> list[tuple[float, ...]]:
    """Random arguments: of moderate size, and of any exponent."""
    generator = random.Random(name)
    count = 2 if name in BINARY else 1
    found = []
    for number in range(samples):
        if number % 2:
            values = [generator.gauss(0, 8) for _ in range(count)]
        else:
            reach = 300 if wide else 37
            values = [
                generator.choice((-1, 1)) * 10 ** generator.uniform(-reach, reach)
                for _ in range(count)
            ]
        if name in ("pow", "log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "acosh"):
            values[0] = abs(values[0])
        if name in ("asin", "acos", "atanh"):
            values[0] = math.fmod(values[0], 1.0)
        if name == "lgamma":
            values[0] = min(values[0], 1e15)
        if name in ("sin", "cos", "tan", "erfc") and wide:
            values[0] = math.copysign(min(abs(values[0]), 1e22), values[0])
        if name == "erfc":
            values[0] = min(values[0], 26.0)
        found.append(tuple(values))
    return found


def sample(names: Sequence[str], dtype: torch.dtype, samples: int) -> dict[str, Worst]:
    """Random arguments against mpmath, one program for all functions of as many arguments."""
    found: dict[str, Worst] = {}
    wide = dtype is torch.float64
    ir, digits, smallest = (DType.f64, 53, -1074) if wide else (DType.f32, 24, -149)
    limit = torch.finfo(dtype).max
    for count in (1, 2):
        chosen = [name for name in names if (name in BINARY) == (count == 2)]
        if not chosen:
            continue
        run = program(chosen, ir, count, samples)
        for position, name in enumerate(chosen):
            given = torch.tensor(arguments(name, samples, wide), dtype=torch.float64).to(dtype)
            inputs = [given[:, n].contiguous() for n in range(count)]
            actual = run(*inputs)[position]
            assert isinstance(actual, Tensor)
            worst = found[name] = Worst()
            for values, result in zip(given.tolist(), actual.tolist(), strict=True):
                value = exact(name, *values)
                if value is None or abs(value) > limit:
                    continue
                error = error_of(result, value, digits, smallest)
                if error > worst.ulps:
                    worst.ulps, worst.at = error, ", ".join(f"{v:.8g}" for v in values)
    return found


def subnormals(dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    least = struct.unpack("<d", struct.pack("<q", 1))[0] if dtype is torch.float64 else 2.0**-149
    return [least, -least, info.tiny / 2, -info.tiny / 2, info.tiny, info.max, -info.max]


def special(names: Sequence[str], dtype: torch.dtype) -> dict[str, str]:
    """How results at special values differ from ATen's in kind or sign; "" where they do not."""
    values = [*SPECIAL, *subnormals(dtype)]
    ir = DType.f64 if dtype is torch.float64 else DType.f32
    found: dict[str, str] = {}
    for count in (1, 2):
        chosen = [name for name in names if (name in BINARY) == (count == 2)]
        if not chosen:
            continue
        grid = list(itertools.product(values, repeat=count))
        given = torch.tensor(grid, dtype=torch.float64).to(dtype)
        inputs = [given[:, n].contiguous() for n in range(count)]
        results = program(chosen, ir, count, len(grid))(*inputs)
        for name, actual in zip(chosen, results, strict=True):
            assert isinstance(actual, Tensor)
            expected = aten(name, *inputs)
            agree = (actual.isnan() & expected.isnan()) | (
                (actual.isinf() == expected.isinf())
                & ~actual.isnan()
                & ~expected.isnan()
                & (actual.signbit() == expected.signbit())
                & ((actual == 0) == (expected == 0))
            )
            texts = [
                f"{', '.join(f'{v:.3g}' for v in grid[n])}: {actual[n]:.3g}, ATen {expected[n]:.3g}"
                for n in (~agree).nonzero().flatten().tolist()
            ]
            found[name] = "; ".join(texts[:3])
    return found


def table(title: str, rows: dict[str, Worst], kinds: dict[str, str]) -> str:
    lines = [
        title,
        "",
        "| function | worst error, ulp | at | special values |",
        "|---|---|---|---|",
    ]
    for name, worst in rows.items():
        note = f"differs at {kinds[name]}" if kinds[name] else "as ATen"
        if worst.wrong:
            note += f"; {worst.wrong} not finite wrongly"
        lines.append(f"| {name} | {worst.ulps:.2f} | {worst.at} | {note} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=101, help="1 takes every float32")
    parser.add_argument("--samples", type=int, default=2000, help="random values against mpmath")
    options = parser.parse_args()
    mpmath.mp.prec = 400
    kinds = special((*VECTOR, *BY_DOUBLES, *BINARY), torch.float32)
    for title, names, stride in (
        ("float32", VECTOR, options.stride),
        ("float32, by way of float64", BY_DOUBLES, 101 * options.stride),
    ):
        every = f"every {stride}th" if stride > 1 else "every"
        print(table(f"{title}, {every} value", sweep32(names, stride), kinds), flush=True)
    every = f"{options.samples} random values"
    print(table(f"float32, {every}", sample(BINARY, torch.float32, options.samples), kinds))
    names = (*VECTOR, *BY_DOUBLES, *BINARY)
    kinds = special(names, torch.float64)
    print(table(f"float64, {every}", sample(names, torch.float64, options.samples), kinds))


if __name__ == "__main__":
    main()
