"""Scatters, scans and dropout on a GPU: `python -m benchmarks.gpu_scatters --markdown table.md`.

Each program runs by eager, plait and `torch.compile`, in turns in one process; dropout by plait
with its counter-based numbers, too. The error is the largest against float64, as a share of the
largest value.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_arguments import add_seconds, chosen, parser
from benchmarks.gpu_facts import facts
from benchmarks.gpu_kernels import interleaved
from benchmarks.measure import SYSTEMS, compiled_by

VOCABULARY, WIDTH, TOKENS = 50257, 768, (8, 1024)
COUNTERS = "plait, counters"


@dataclass(frozen=True)
class Case:
    """A program and what makes its inputs."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], list[Tensor]]
    random: bool = False
    """Whether its results differ from run to run."""


def embedding_backward(grad: Tensor, index: Tensor) -> Tensor:
    """The gradient of a table of embeddings."""
    return torch.ops.aten.embedding_dense_backward(grad, index, VOCABULARY, -1, False)


def scatter_add(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """Numbers added at places."""
    return x.scatter_add(0, index, source)


def index_add(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """Rows added, as messages of a graph network are."""
    return x.index_add(0, index, F.relu(source))


def scatter_amax(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """The largest at each place."""
    return x.scatter_reduce(0, index, source, "amax")


def running_sum(x: Tensor) -> Tensor:
    """Along rows."""
    return x.cumsum(-1)


def running_sum_down(x: Tensor) -> Tensor:
    """Down columns."""
    return x.cumsum(0)


def log_running_sum(x: Tensor) -> Tensor:
    """Of exponentials, along rows."""
    return x.logcumsumexp(-1)


def dropout(x: Tensor, scale: Tensor, residual: Tensor) -> Tensor:
    """Between its neighbours in a transformer."""
    return F.dropout(x * scale, 0.1, True) + residual


def _draw() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(0)


def _normal(*sizes: tuple[int, ...], dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    def make() -> list[Tensor]:
        draw = _draw()
        return [torch.randn(size, device="cuda", generator=draw).to(dtype) for size in sizes]

    return make


def _gradients(dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    def make() -> list[Tensor]:
        index = torch.randint(VOCABULARY, TOKENS, device="cuda", generator=_draw())
        return [*_normal((*TOKENS, WIDTH), dtype=dtype)(), index]

    return make


def _places(
    size: tuple[int, ...], count: int, row: tuple[int, ...], dtype: torch.dtype
) -> Callable[[], list[Tensor]]:
    def make() -> list[Tensor]:
        x, source = _normal(size, (count, *row), dtype=dtype)()
        return [x, torch.randint(size[0], (count,), device="cuda", generator=_draw()), source]

    return make


_TABLE = (16384, 4096)
_MILLION = 1_000_000
CASES = (
    Case("embedding's gradient, bf16", embedding_backward, _gradients(torch.bfloat16)),
    Case("embedding's gradient, f32", embedding_backward, _gradients(torch.float32)),
    Case(
        *("scatter_add, 10M in 1M, f32", scatter_add),
        _places((_MILLION,), 10 * _MILLION, (), torch.float32),
    ),
    Case(
        *("scatter_add, 10M in 1M, bf16", scatter_add),
        _places((_MILLION,), 10 * _MILLION, (), torch.bfloat16),
    ),
    Case(
        *("index_add, 500k rows of 128, f32", index_add),
        _places((100_000, 128), 500_000, (128,), torch.float32),
    ),
    Case(
        *("scatter amax, 10M in 1M, f32", scatter_amax),
        _places((_MILLION,), 10 * _MILLION, (), torch.float32),
    ),
    Case("cumsum, 1×16M, f32", running_sum, _normal((1, 1 << 24), dtype=torch.float32)),
    Case("cumsum, 4096×32768, f32", running_sum, _normal((4096, 32768), dtype=torch.float32)),
    Case("cumsum, 4096×32768, bf16", running_sum, _normal((4096, 32768), dtype=torch.bfloat16)),
    Case(
        "cumsum down 65536×512, f32", running_sum_down, _normal((65536, 512), dtype=torch.float32)
    ),
    Case("logcumsumexp, 4096×32768", log_running_sum, _normal((4096, 32768), dtype=torch.float32)),
    Case(
        *("dropout chain, 16384×4096, bf16", dropout),
        *(_normal(_TABLE, (4096,), _TABLE, dtype=torch.bfloat16), True),
    ),
)


def _compiled(system: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if system == COUNTERS:
        return compiled_by("plait", function, options={"random": "counter"})
    return compiled_by(system, function)


def time_case(case: Case, systems: Sequence[str], seconds: float) -> dict[str, dict[str, Any]]:
    """By system: microseconds of a call, seconds of the first, and the error."""
    inputs = case.inputs()
    found: dict[str, dict[str, Any]] = {}
    functions: dict[str, Callable[..., Any]] = {}
    chosen = [*systems, COUNTERS] if case.random else systems
    wanted = None
    if not case.random:
        wanted = case.function(*(x.double() if x.is_floating_point() else x for x in inputs))
    for system in chosen:
        started = time.perf_counter()
        try:
            function = _compiled(system, case.function)
            result = function(*inputs)
            torch.cuda.synchronize()
        except Exception as error:  # one system's failure is a result, not the end
            found[system] = {"failure": f"{type(error).__name__}: {error}".splitlines()[0]}
            continue
        found[system] = {"first_s": time.perf_counter() - started}
        if wanted is not None:
            worst = (result.double() - wanted).abs().max() / wanted.abs().max()
            found[system]["error"] = float(worst)
        functions[system] = function
        del result
    del wanted
    for system, taken in interleaved(functions, inputs, seconds).items():
        found[system]["us"] = 1e6 * taken
    return found


def as_markdown(rows: dict[str, dict[str, dict[str, Any]]], systems: Sequence[str]) -> str:
    """The table, with where and when it was measured."""
    columns = [*systems, COUNTERS]
    head = f"| µs of a call (error) | {' | '.join(columns)} |"
    lines = [head, "|---" * (len(columns) + 1) + "|"]
    for name, made in rows.items():
        lines.append(f"| {name} | {' | '.join(_cell(made.get(each)) for each in columns)} |")
    return "\n".join([f"{facts()}.", "", *lines, ""])


def _cell(made: dict[str, Any] | None) -> str:
    if made is None:
        return ""
    if "us" not in made:
        return str(made.get("failure"))
    error = f" ({made['error']:.0e})" if "error" in made else ""
    return f"{made['us']:.0f}{error}"


def main() -> None:
    """Measure, print, and write the table where that is asked for."""
    made = parser("gpu_scatters", __doc__, SYSTEMS)
    add_seconds(made, 1.0)
    arguments = made.parse_args()
    names = chosen([case.name for case in CASES], arguments.names)
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for case in CASES:
        if case.name not in names:
            continue
        rows[case.name] = time_case(case, arguments.systems, arguments.seconds)
        print(case.name, rows[case.name], file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    text = as_markdown(rows, arguments.systems)
    print(text)
    if arguments.markdown is not None:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
