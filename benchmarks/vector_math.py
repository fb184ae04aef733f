"""Elementary functions on one thread, by `python -m benchmarks.vector_math`: speed over eager's.

A row for each function, a column for each element type and size. Both are called in turns in one
process; the least time that the process took of many calls counts, so that what else the machine
does is left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import plait
from benchmarks.runner import machine

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
SIZES = {"100k": 100_000, "10M": 10_000_000}


@dataclass(frozen=True)
class Row:
    """A function, and between which numbers its arguments lie."""

    name: str
    function: Callable[..., Tensor]
    domains: Sequence[tuple[float, float]]


_ANY = ((-4.0, 4.0),)
_POSITIVE = ((1e-3, 10.0),)
_BELOW_ONE = ((-1.0, 1.0),)
_TWO = ((-4.0, 4.0), (-4.0, 4.0))


def _named(names: str, domains: Sequence[tuple[float, float]]) -> tuple[Row, ...]:
    return tuple(Row(name, getattr(torch, name), domains) for name in names.split())


ROWS = (
    *_named("exp exp2 expm1 sigmoid tanh sinh cosh sin cos tan atan asinh erf erfc", _ANY),
    *_named("log log2 log10 log1p sqrt rsqrt lgamma digamma", _POSITIVE),
    *_named("asin acos atanh erfinv", _BELOW_ONE),
    *_named("acosh", ((1.0, 10.0),)),
    Row("lgamma below 0", torch.lgamma, ((-10.0, 10.0),)),
    Row("digamma below 0", torch.digamma, ((-10.0, 10.0),)),
    *_named("atan2 hypot fmod remainder logaddexp", _TWO),
    Row("pow", torch.pow, ((1e-3, 10.0), (-4.0, 4.0))),
    Row("pow, 2.5", lambda x: x**2.5, _POSITIVE),
    Row("pow, base 2.5", lambda x: 2.5**x, _ANY),
    Row("xlogy", torch.xlogy, ((-4.0, 4.0), (1e-3, 10.0))),
    Row("igamma", torch.igamma, ((0.1, 10.0), (0.1, 10.0))),
    Row("gelu", F.gelu, _ANY),
    Row("gelu, tanh", lambda x: F.gelu(x, approximate="tanh"), _ANY),
    *(Row(each.__name__, each, _ANY) for each in (F.silu, F.elu, F.mish, F.softplus, F.logsigmoid)),
    Row("softmax", lambda x: x.view(-1, 1000).softmax(1), _ANY),
    Row("log_softmax", lambda x: x.view(-1, 1000).log_softmax(1), _ANY),
    Row("logit", lambda x: torch.logit(x, 1e-6), ((0.0, 1.0),)),
    Row("i0", torch.special.i0, _ANY),
    Row("ndtri", torch.special.ndtri, ((0.0, 1.0),)),
    Row("log_ndtr", torch.special.log_ndtr, _ANY),
    Row("erfcx", torch.special.erfcx, _ANY),
    Row("entr", torch.special.entr, _POSITIVE),
    Row("sinc", torch.sinc, _ANY),
)


def speed(row: Row, dtype: torch.dtype, count: int, seconds: float) -> float | str:
    """Eager's least time over plait's; where eager has no such function, what it says."""
    torch.manual_seed(0)
    inputs = [torch.empty(count, dtype=dtype).uniform_(low, high) for low, high in row.domains]
    try:
        row.function(*inputs)
    except (RuntimeError, NotImplementedError):
        return "–"
    compiled = plait.compile(row.function)
    for _ in range(3):
        compiled(*inputs)
    eager = ours = float("inf")
    begun, rounds = time.perf_counter(), 0
    while rounds < 5 or time.perf_counter() - begun < seconds:
        eager = min(eager, _seconds(row.function, inputs))
        ours = min(ours, _seconds(compiled, inputs))
        rounds += 1
    return eager / ours


def _seconds(function: Callable[..., Any], inputs: Sequence[Tensor]) -> float:
    start = time.process_time()
    function(*inputs)
    return time.process_time() - start


def markdown(found: Mapping[str, Mapping[str, float | str]]) -> str:
    """The table; what is slower than eager is bold."""
    columns = list(next(iter(found.values())))
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name, speeds in found.items():
        lines.append(f"| {name} | {' | '.join(_cell(speeds[each]) for each in columns)} |")
    return "\n".join(lines)


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vector_math", description=__doc__)
    parser.add_argument("functions", nargs="*", help="some of the rows, by name")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--size", action="append", choices=SIZES)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each cell")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for row in ROWS if not options.functions or row.name in options.functions]
    found: dict[str, dict[str, float | str]] = {}
    with torch.no_grad():
        for row in rows:
            cells = found[row.name] = {}
            for dtype in options.dtype or DTYPES:
                for size in options.size or SIZES:
                    count = SIZES[size]
                    value = speed(row, DTYPES[dtype], count, options.seconds)
                    cells[f"{dtype}, {size}"] = value
            print(row.name, *map(_cell, cells.values()), file=sys.stderr, flush=True)
    text = f"{machine()}\n\n{markdown(found)}"
    if options.markdown:
        options.markdown.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
