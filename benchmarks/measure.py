"""Measurements, each in a process of its own: `python -m benchmarks.measure <what> ...`.

Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads import Case, make_case, workload
from benchmarks.wrapper import wrapper

SYSTEMS = ("eager", "plait", "torch.compile")


def compiled_by(system: str, function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    """`function` as a system runs it."""
    if system == "eager":
        return function
    if system == "plait":
        import plait

        return plait.compile(function, **arguments)
    return torch.compile(function, **arguments)


def first_call(name: str, system: str) -> dict[str, Any]:
    """Seconds of the first call and what follows: cold or warm, as the caches are."""
    case = make_case(name)
    facts, function = _compiled(case, system)
    return {**facts, "peak_mb": _peak_while_running(case, function)}


def compile_facts(case: Case, system: str) -> dict[str, Any]:
    """Seconds of a case's first call, and what plait says about it."""
    return _compiled(case, system)[0]


def _compiled(case: Case, system: str) -> tuple[dict[str, Any], Callable[..., Any]]:
    start = time.perf_counter()
    function = compiled_by(system, case.function)
    case.step(function)
    first = time.perf_counter() - start
    # The median: the second may pay for the garbage that compiling left.
    later = statistics.median(_seconds(lambda: case.step(function)) for _ in range(3))
    facts: dict[str, Any] = {"first_s": first, "compile_s": max(first - later, 0.0)}
    if system == "plait":
        import plait

        report = plait.report(function)
        facts["stages_s"] = report.seconds
        facts["graphs"] = len(report.graphs)
        facts["breaks"] = len(report.breaks)
        facts["kernels"] = report.kernels
        facts["eager_graphs"] = [graph.reason for graph in report.eager_graphs]
    return facts, function


def _seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _peak_while_running(case: Case, function: Callable[..., Any]) -> float | None:
    """Megabytes of the whole process, at most, during a few steps.

    The whole process, because some systems keep freed memory for the next step: what a step
    adds to that says nothing.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of compiling
        for _ in range(3):
            case.step(function)
        return round(_status_mb("VmHWM"), 1)
    except OSError:
        return None


def _status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"no {field} in /proc/self/status")


def steady(name: str, systems: Sequence[str], seconds: float) -> dict[str, Any]:
    """Milliseconds of a step by system, interleaved, and errors against float64."""
    case = make_case(name)
    functions: dict[str, Callable[..., Any]] = {}
    failures: dict[str, str] = {}
    results: dict[str, list[Tensor]] = {}
    for system in systems:
        try:
            functions[system] = compiled_by(system, case.function)
            results[system] = case.values(functions[system])
        except Exception as error:  # one system's failure is a result, not the end
            functions.pop(system, None)
            failures[system] = f"{type(error).__name__}: {error}".splitlines()[0]
    runners: dict[str, Callable[[], Any]] = {
        system: functools.partial(case.step, each) for system, each in functions.items()
    }
    if workload(name).bytes_bound:
        runners["copy"] = _copy(case.moved_bytes())
    times = _interleaved(runners, seconds)
    wide = make_case(name).double()
    reference = wide.values(wide.function)
    facts = {
        system: {
            "step_ms": statistics.median(times[system]),
            "fastest_ms": min(times[system]),
            "rounds": len(times[system]),
            **_errors(results[system], reference, case.training),
        }
        for system in functions
    }
    if "copy" in times:
        pace = statistics.median(times["copy"])
        facts |= {
            s: {**found, "share_of_copy": pace / found["step_ms"]} for s, found in facts.items()
        }
    return facts | {system: {"failure": text} for system, text in failures.items()}


def _copy(moved: int) -> Callable[[], Any]:
    """Copies so much that as many bytes are read and written."""
    source, target = (torch.ones(moved // 8) for _ in range(2))
    return lambda: target.copy_(source)


def _errors(
    found: Sequence[Tensor], reference: Sequence[Tensor], training: bool
) -> dict[str, float]:
    """The largest difference of results, and the largest of a gradient by the norm of this one.

    Not by element: where the input of a ReLU is zero but for rounding, some elements differ.
    """
    pairs = [(a.double(), b) for a, b in zip(found, reference, strict=True)]
    results, gradients = (pairs[:1], pairs[1:]) if training else (pairs, [])
    errors = {"error": max(float((a - b).abs().max()) for a, b in results)}
    if gradients:
        shares = [float((a - b).norm() / b.norm()) for a, b in gradients if b.any()]
        errors["gradient_error"] = max(shares)
    return errors


def _interleaved(runners: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Times in milliseconds: the systems take turns, so that drift meets all alike."""
    times: dict[str, list[float]] = {system: [] for system in runners}
    for run in runners.values():
        for _ in range(3):
            run()
    if "plait" in runners:
        from plait_bytecode_tracer import wait_for_native_guards

        wait_for_native_guards()  # they are compiled beside the first calls
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(next(iter(times.values()))) < 10:
        for system, run in runners.items():
            start = time.perf_counter()
            run()
            times[system].append(1e3 * (time.perf_counter() - start))
    return times


def overhead(layers: int, systems: Sequence[str], seconds: float) -> dict[str, Any]:
    """Microseconds of guards and dispatch for a module of `layers` Linears that computes nothing.

    The graph is replaced by a function that returns a tensor made before.
    """
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(layers))).eval()
    case = Case(model, (torch.randn(4, 16),), model)
    ready = (torch.zeros(4, 16),)

    def backend(graph: Any, example_inputs: Any) -> Callable[..., Any]:
        return lambda *inputs: ready

    from plait_bytecode_tracer import wait_for_native_guards

    functions = {
        system: compiled_by(system, model, backend=backend)
        for system in systems
        if system != "eager"
    }
    with torch.no_grad():
        for system, function in functions.items():
            function(*case.arguments)
            if system == "plait":
                wait_for_native_guards()
            _microseconds(function, case)
        times: dict[str, list[float]] = {system: [] for system in functions}
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds or not all(times.values()):
            for system, function in functions.items():
                times[system] += _microseconds(function, case)
    return {system: statistics.median(spent) for system, spent in times.items()}


_BATCH = 50
"""Few enough that most batches run without being interrupted by other processes."""


def _microseconds(function: Callable[..., Any], case: Case) -> list[float]:
    """Of one call, from a batch of them: what the clock itself takes would count else."""
    arguments = case.arguments
    start = time.perf_counter()
    for _ in range(_BATCH):
        function(*arguments)
    return [1e6 * (time.perf_counter() - start) / _BATCH]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("first-call", "steady", "overhead", "wrapper"))
    parser.add_argument("--workload")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    systems = arguments.systems.split(",")
    if arguments.what == "first-call":
        facts = first_call(arguments.workload, systems[0])
    elif arguments.what == "steady":
        facts = steady(arguments.workload, systems, arguments.seconds)
    elif arguments.what == "wrapper":
        facts = wrapper(arguments.layers, systems, arguments.seconds)
    else:
        facts = overhead(arguments.layers, systems, arguments.seconds)
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
