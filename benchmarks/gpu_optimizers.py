"""Steps of optimizers on a GPU: `python -m benchmarks.gpu_optimizers --markdown table.md`.

Of the 148 parameters of a GPT-2 of 124 million numbers in float32, by eager (with its operators of
lists), plait, plait with CUDA graphs, and `torch.compile`, in turns in one process. A step's time
is that between two waits for the device. The memory is what a step takes at its peak beyond what
is there between steps. The error is the largest after the steps that are timed first, of parameters
that began equal, as a share of the largest value.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_arguments import add_json, add_seconds, chosen, parser, show
from benchmarks.gpu_facts import facts
from benchmarks.gpu_kernels import cell
from benchmarks.measure import compiled_by

SYSTEMS = ("eager", "plait", "plait, graphs", "torch.compile")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": lambda given: torch.optim.AdamW(given, lr=1e-3, foreach=True),
    "AdamW, fused": lambda given: torch.optim.AdamW(given, lr=1e-3, fused=True),
    "SGD, momentum": lambda given: torch.optim.SGD(given, lr=1e-3, momentum=0.9, foreach=True),
}
_WIDTH, _LAYERS, _WORDS, _PLACES = 768, 12, 50257, 1024
_CHECKED_STEPS = 4


def shapes() -> list[tuple[int, ...]]:
    """Those of GPT-2's parameters."""
    d = _WIDTH
    attention = [(d,), (d,), (d, 3 * d), (3 * d,), (d, d), (d,)]
    feed_forward = [(d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return [(_WORDS, d), (_PLACES, d), *[*attention, *feed_forward] * _LAYERS, (d,), (d,)]


def measure(names: Sequence[str], systems: Sequence[str], seconds: float) -> dict[str, Any]:
    """All that the table shows."""
    found = {}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        found[name] = _optimizer(OPTIMIZERS[name], systems, seconds)
        torch.cuda.empty_cache()
    return {"facts": facts(), "optimizers": found}


def _optimizer(
    make: Callable[..., torch.optim.Optimizer], systems: Sequence[str], seconds: float
) -> dict[str, dict[str, Any]]:
    steps: dict[str, Callable[[], object]] = {}
    found: dict[str, dict[str, Any]] = {}
    wanted: list[torch.Tensor] = []
    for system in systems:
        parameters = _parameters()
        arguments = {"options": {"triton.cuda_graphs": True}} if system == "plait, graphs" else {}
        step = compiled_by(system.partition(",")[0], make(parameters).step, **arguments)
        try:
            first = _seconds(step)
            for _ in range(_CHECKED_STEPS):
                step()
        except Exception as error:
            found[system] = {"failure": f"{type(error).__name__}: {error}"[:200]}
            continue
        found[system] = {"first_s": first, "peak_mb": _peak(step)}
        wanted = wanted or [each.detach().clone() for each in parameters]
        found[system]["error"] = max(
            float((made.detach() - right).abs().max() / right.abs().max())
            for made, right in zip(parameters, wanted, strict=True)
        )
        steps[system] = step
    for system, times in _in_turns(steps, seconds).items():
        found[system]["us"] = 1e6 * statistics.median(times)
    return found


def _parameters() -> list[nn.Parameter]:
    made = []
    for number, shape in enumerate(shapes()):
        generator = torch.Generator("cuda").manual_seed(number)
        value, grad = (torch.randn(shape, device="cuda", generator=generator) for _ in range(2))
        made.append(nn.Parameter(value * 0.02))
        made[-1].grad = grad * 0.01
    return made


def _seconds(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def _peak(step: Callable[[], object]) -> float:
    """Megabytes that a step takes beyond what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def _in_turns(steps: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {system: [] for system in steps}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or min(map(len, times.values())) < 15:
        for system, step in steps.items():
            times[system].append(_seconds(step))
    return times


def markdown(results: Mapping[str, Any]) -> str:
    """A row for each optimizer."""
    heads = [f"{system}: {what}" for what in ("µs", "first s", "MB more") for system in SYSTEMS]
    heads += [f"{system}: error" for system in SYSTEMS[1:]]
    lines = [
        results["facts"],
        "",
        f"| step of | {' | '.join(heads)} |",
        "|---|" + "---:|" * len(heads),
    ]
    for name, made in results["optimizers"].items():
        cells = [
            cell(made, system, field, form)
            for field, form in (("us", "{:.0f}"), ("first_s", "{:.1f}"), ("peak_mb", "{:.1f}"))
            for system in SYSTEMS
        ]
        cells += [cell(made, system, "error", "{:.1e}") for system in SYSTEMS[1:]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    told = [
        f"- {name}, {system}: {each['failure']}"
        for name, made in results["optimizers"].items()
        for system, each in made.items()
        if "failure" in each
    ]
    return "\n".join([*lines, *(["", *told] if told else [])])


def main() -> int:
    made = parser("gpu_optimizers", __doc__, SYSTEMS)
    add_seconds(made, 2.0)
    add_json(made)
    options = made.parse_args()
    names = chosen(OPTIMIZERS, options.names)
    show(measure(names, options.systems, options.seconds), markdown, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
