"""Kernels that memory bounds, on a GPU: `python -m benchmarks.gpu_kernels --markdown table.md`.

Each program runs by eager, plait and `torch.compile`, in turns in one process. A share is the
bytes that the program must read and write, over its time, of what a copy of a large tensor moves
in the same run. A copy that moves just as many bytes as the program takes turns with it: the
smaller it is, the less it moves in a second. The error is the largest against float32, as a share
of the largest value.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_arguments import add_json, add_seconds, chosen, parser, show
from benchmarks.gpu_facts import facts
from benchmarks.measure import SYSTEMS, compiled_by

ROWS, WIDTH = 16384, 4096
LOGITS = (8192, 32768)
IMAGES = (256, 64, 112, 112)
_BATCH_SECONDS = 5e-3


@dataclass(frozen=True)
class Kernel:
    """A program, the shapes of its inputs, and the elements that it must move."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    results: int
    """Bytes of what it writes."""
    reads: int = 1
    """How often it must read its first input: more than once where a statistic of all of it
    must be known first, and it is larger than what a GPU keeps."""


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The activation of a gated feed-forward layer."""
    return F.silu(gate) * up


def bias_gelu_residual(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """What follows the first product of a feed-forward layer."""
    return F.gelu(x + bias) + residual


def softmax(x: Tensor) -> Tensor:
    """Along rows."""
    return torch.softmax(x, -1)


def softmax_of_logits(x: Tensor) -> Tensor:
    """Along long rows, in float32."""
    return torch.softmax(x.float(), -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Along rows."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sum is needed later, too."""
    total = x + residual
    wide = total.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return total, (wide * scale).to(x.dtype) * weight


def cross_entropy(logits: Tensor) -> Tensor:
    """The loss of a language model."""
    return F.cross_entropy(logits.float(), torch.zeros_like(logits[:, 0], dtype=torch.long))


def column_sum(x: Tensor) -> Tensor:
    """The gradient of a bias."""
    return x.sum(0)


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    """One input lies by its columns."""
    return x.t() + y


def batch_norm_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As it is trained: by the statistics of the batch."""
    return F.relu(F.batch_norm(x, None, None, weight, bias, training=True))


_TABLE = (ROWS, WIDTH)
_OF_TABLE = 2 * ROWS * WIDTH
KERNELS = (
    Kernel("swiglu", swiglu, (_TABLE, _TABLE), _OF_TABLE),
    Kernel("bias+GELU+residual", bias_gelu_residual, (_TABLE, (WIDTH,), _TABLE), _OF_TABLE),
    Kernel("softmax, 4096", softmax, (_TABLE,), _OF_TABLE),
    Kernel("LayerNorm, 4096", layer_norm, (_TABLE, (WIDTH,), (WIDTH,)), _OF_TABLE),
    Kernel("add+RMSNorm", add_rms_norm, (_TABLE, _TABLE, (WIDTH,)), 2 * _OF_TABLE),
    Kernel("softmax, 32768, float", softmax_of_logits, (LOGITS,), 4 * LOGITS[0] * LOGITS[1]),
    Kernel("cross-entropy, 32768", cross_entropy, (LOGITS,), 4),
    Kernel("column sum", column_sum, (_TABLE,), 2 * WIDTH),
    Kernel("transpose+add", transpose_add, ((WIDTH, ROWS), _TABLE), _OF_TABLE),
    Kernel(
        *("batch norm, training, ReLU", batch_norm_relu, (IMAGES, (64,), (64,))),
        *(2 * 256 * 64 * 112 * 112, 2),
    ),
)


def inputs_of(kernel: Kernel) -> list[Tensor]:
    """Normal numbers in bfloat16, the same in every run."""
    draw = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(shape, device="cuda", generator=draw).bfloat16() for shape in kernel.shapes]


def moved(kernel: Kernel, inputs: Sequence[Tensor]) -> int:
    """Bytes that a call must read and write."""
    read = [each.numel() * each.element_size() for each in inputs]
    return sum(read) + (kernel.reads - 1) * read[0] + kernel.results


def time_kernel(kernel: Kernel, systems: Sequence[str], seconds: float) -> dict[str, Any]:
    """By system: microseconds of a call, seconds of the first, and the error."""
    inputs = inputs_of(kernel)
    found: dict[str, Any] = {}
    functions: dict[str, Callable[..., Any]] = {}
    wanted = _wide(kernel, inputs)
    for system in systems:
        started = time.perf_counter()
        try:
            function = compiled_by(system, kernel.function)
            result = function(*inputs)
            torch.cuda.synchronize()
        except Exception as error:  # one system's failure is a result, not the end
            found[system] = {"failure": f"{type(error).__name__}: {error}".splitlines()[0]}
            continue
        found[system] = {"first_s": time.perf_counter() - started, "error": _error(result, wanted)}
        if system == "plait":
            import plait

            report = plait.report(function)
            found[system]["eager"] = [graph.reason for graph in report.eager_graphs]
            found[system]["kernels"] = report.kernels
        functions[system] = function
        del result
    del wanted
    functions["copy"], found["copy"] = _copy_of(moved(kernel, inputs)), {}
    for system, taken in interleaved(functions, inputs, seconds).items():
        found[system]["us"] = 1e6 * taken
    return found


def _copy_of(count: int) -> Callable[..., Any]:
    """A copy that reads and writes so many bytes together, whatever it is given."""
    source = torch.zeros(count // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda *_: target.copy_(source)


def _wide(kernel: Kernel, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What it computes of the same numbers in float32."""
    made = kernel.function(*(each.float() for each in inputs))
    return [*made] if isinstance(made, tuple) else [made]


def _error(result: Any, wanted: Sequence[Tensor]) -> float:
    results = result if isinstance(result, tuple) else (result,)
    pairs = zip(results, wanted, strict=True)
    return max(
        float((made.float() - right).abs().max() / right.abs().max().clamp_min(1e-30))
        for made, right in pairs
    )


def interleaved(
    functions: Mapping[str, Callable[..., Any]], inputs: Sequence[Tensor], seconds: float
) -> dict[str, float]:
    """Median seconds of a call, by events of the device around batches of calls."""
    counts = {}
    for system, function in functions.items():
        one = _batch(function, inputs, 3)
        counts[system] = max(3, int(_BATCH_SECONDS / max(one, 1e-6)))
    times: dict[str, list[float]] = {system: [] for system in functions}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or min(map(len, times.values())) < 7:
        for system, function in functions.items():
            times[system].append(_batch(function, inputs, counts[system]))
    return {system: statistics.median(each) for system, each in times.items()}


def _batch(function: Callable[..., Any], inputs: Sequence[Tensor], count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.no_grad():
        function(*inputs)  # so that the device is busy while the next calls are made
        start.record()
        for _ in range(count):
            function(*inputs)
        end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def copy_bandwidth(seconds: float) -> float:
    """Bytes a second that a copy of half a gigabyte reads and writes."""
    source = torch.randn(128 << 20, device="cuda")
    target = torch.empty_like(source)
    taken = interleaved({"copy": lambda x: target.copy_(x)}, [source], seconds)["copy"]
    return 2 * source.numel() * source.element_size() / taken


def measure(names: Sequence[str], systems: Sequence[str], seconds: float) -> dict[str, Any]:
    """All that the table shows."""
    bandwidth = copy_bandwidth(seconds)
    kernels = {}
    for kernel in KERNELS:
        if kernel.name not in names:
            continue
        print(kernel.name, file=sys.stderr, flush=True)
        made = time_kernel(kernel, systems, seconds)
        must = moved(kernel, inputs_of(kernel))
        for each in made.values():
            if "us" in each:
                each["share"] = must / (each["us"] * 1e-6) / bandwidth
        kernels[kernel.name] = made
        torch.cuda.empty_cache()
    return {
        "facts": facts(),
        "copy": bandwidth,
        "kernels": kernels,
    }


def markdown(results: Mapping[str, Any]) -> str:
    """A row for each program."""
    lines = [
        f"{results['facts']}; a copy moves {results['copy'] / 1e12:.2f} TB/s.",
        "",
        "| program, bfloat16 | eager: µs | plait: µs | torch.compile: µs | "
        "copy of as many bytes: µs | eager: share | plait: share | torch.compile: share | "
        "plait: first s | torch.compile: first s | plait: error | torch.compile: error |",
        "|---|" + "---:|" * 11,
    ]
    for name, made in results["kernels"].items():
        cells = [cell(made, system, "us", "{:.1f}") for system in (*SYSTEMS, "copy")]
        cells += [cell(made, system, "share", "{:.2f}") for system in SYSTEMS]
        cells += [cell(made, system, "first_s", "{:.2f}") for system in SYSTEMS[1:]]
        cells += [cell(made, system, "error", "{:.1e}") for system in SYSTEMS[1:]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    told = [
        f"- {name}, {system}: {each.get('failure') or each['eager']}"
        for name, made in results["kernels"].items()
        for system, each in made.items()
        if each.get("failure") or each.get("eager")
    ]
    return "\n".join([*lines, *(["", *told] if told else [])])


def cell(made: Mapping[str, Any], system: str, field: str, form: str) -> str:
    """What was measured of a system, as text."""
    value = made.get(system, {}).get(field)
    return "–" if value is None else form.format(value)


def main() -> int:
    made = parser("gpu_kernels", __doc__, SYSTEMS)
    add_seconds(made, 1.0)
    add_json(made)
    options = made.parse_args()
    names = chosen([kernel.name for kernel in KERNELS], options.names)
    show(measure(names, options.systems, options.seconds), markdown, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
