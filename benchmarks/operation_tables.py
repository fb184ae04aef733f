"""Single operators and small fusions: `python -m benchmarks.operation_tables`.

Eager, plait and `torch.compile` call each row of `benchmarks.operations` in turns, in three sizes.
The tables show microseconds of a call, medians, and plait's speed over the faster of the others.
Results of several runs, such as one for each size, are shown together: `--from-json A.json B.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import SYSTEMS, compiled_by
from benchmarks.operations import GROUPS, SIZES, Arguments, Row, reason
from benchmarks.runner import machine

_BATCH_MICROSECONDS = 200.0
"""At least so long is what the clock is read around."""
_SLOW = 0.9
"""Below this share of the faster of eager and torch.compile a row wants a reason."""


def time_row(row: Row, size: str, seconds: float) -> dict[str, Any]:
    """Microseconds of a call by system, and what plait ran eagerly or as external calls."""
    torch.manual_seed(0)
    arguments = row.inputs(*SIZES[size])
    functions: dict[str, Callable[..., Any]] = {}
    failures: dict[str, str] = {}
    torch.compiler.reset()
    for system in SYSTEMS:
        try:
            function = compiled_by(system, row.function)
            function(*arguments)
        except Exception as error:  # one system's failure is a result, not the end
            failures[system] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            functions[system] = function
    found: dict[str, Any] = {"us": _interleaved(functions, arguments, seconds)}
    if failures:
        found["failures"] = failures
    if "plait" in functions:
        found |= _captured(functions["plait"])
    return found


def _captured(function: Callable[..., Any]) -> dict[str, Any]:
    """What plait made of a row: calls of torch's operators, and what stayed eager."""
    import plait

    report = plait.report(function)
    return {
        "external": sorted({name for graph in report.graphs for name in graph.external_calls}),
        "eager": [graph.reason for graph in report.eager_graphs],
    }


def _interleaved(
    functions: Mapping[str, Callable[..., Any]], arguments: Arguments, seconds: float
) -> dict[str, float]:
    """Medians of batches; the systems take turns, so that drift meets all alike."""
    counts = {system: _calls_in_batch(run, arguments) for system, run in functions.items()}
    times: dict[str, list[float]] = {system: [] for system in functions}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(next(iter(times.values()))) < 7:
        for system, run in functions.items():
            times[system].append(_batch(run, arguments, counts[system]))
    return {system: round(statistics.median(each), 3) for system, each in times.items()}


def _batch(run: Callable[..., Any], arguments: Arguments, count: int) -> float:
    """Microseconds of a call, from a batch of them."""
    start = time.perf_counter()
    for _ in range(count):
        run(*arguments)
    return 1e6 * (time.perf_counter() - start) / count


def _calls_in_batch(run: Callable[..., Any], arguments: Arguments) -> int:
    """How many calls last long enough for the clock."""
    count = 1
    while (spent := _batch(run, arguments, count) * count) < _BATCH_MICROSECONDS:
        count = max(2 * count, int(count * _BATCH_MICROSECONDS / max(spent, 1.0)))
    return count


def measure(
    groups: Sequence[str], sizes: Sequence[str], part: str, seconds: float
) -> dict[str, Any]:
    """By group, row and size. `part` "I/N" takes every N-th row from the I-th."""
    first, step = map(int, part.split("/"))
    found: dict[str, Any] = {}
    for group in groups:
        for row in GROUPS[group][first::step]:
            for size in sizes:
                print(f"{group}: {row.name}, {size}", file=sys.stderr, flush=True)
                timed = time_row(row, size, seconds)
                found.setdefault(group, {}).setdefault(row.name, {})[size] = timed
    return {"machine": machine(), "threads": torch.get_num_threads(), "groups": found}


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several runs on one machine as one, in the order of the rows."""
    groups: dict[str, Any] = {}
    for group, rows in GROUPS.items():
        for row in rows:
            sizes: dict[str, Any] = {}
            for result in results:
                sizes |= result["groups"].get(group, {}).get(row.name, {})
            if sizes:
                groups.setdefault(group, {})[row.name] = {s: sizes[s] for s in SIZES if s in sizes}
    return {**results[0], "groups": groups}


def speed(timed: Mapping[str, Any]) -> float | None:
    """Of plait over the faster of the others; None where one is missing."""
    times = timed["us"]
    others = [times[system] for system in times if system != "plait"]
    return min(others) / times["plait"] if others and "plait" in times else None


def markdown(results: Mapping[str, Any]) -> str:
    """A table for each group; speeds below 0.9 are bold."""
    parts = []
    for group, rows in results["groups"].items():
        shown = [size for size in SIZES if any(size in sizes for sizes in rows.values())]
        head = ["", *(f"{size}: eager µs | torch.compile | plait | speed" for size in shown)]
        lines = [f"### {group.capitalize()}", "", f"| {' | '.join(head)} |"]
        lines.append("|---|" + "---:|" * (4 * len(shown)))
        for name, sizes in rows.items():
            cells = [cell for size in shown for cell in _cells(sizes.get(size))]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        told = _reasons(group, rows)
        lines += ["", f"Below {_SLOW}, and why:", "", *told] if told else []
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _reasons(group: str, rows: Mapping[str, Any]) -> list[str]:
    """A line for each reason, with the rows that it is one of."""
    found: dict[str, list[str]] = {}
    for row in GROUPS[group]:
        for size, timed in rows.get(row.name, {}).items():
            over = speed(timed)
            if over is not None and over < _SLOW:
                why = reason(group, row, size) or "no reason is known"
                found.setdefault(why, []).append(f"{row.name} ({size} {over:.2f})")
    return [f"- {', '.join(names)}: {why}." for why, names in found.items()]


def _cells(timed: Mapping[str, Any] | None) -> list[str]:
    if timed is None:
        return ["–"] * 4
    times = [timed["us"].get(system) for system in ("eager", "torch.compile", "plait")]
    shown = [
        "–" if each is None else f"{each:.3g}" if each < 100 else f"{each:.0f}" for each in times
    ]
    over = speed(timed)
    if over is None:
        return [*shown, "–"]
    return [*shown, f"**{over:.2f}**" if over < _SLOW else f"{over:.2f}"]


def summary(results: Mapping[str, Any]) -> str:
    """How many rows of each size are slower, and the geometric mean of speeds."""
    lines = []
    for group, rows in results["groups"].items():
        for size in SIZES:
            speeds = [speed(sizes[size]) for sizes in rows.values() if size in sizes]
            known = [each for each in speeds if each is not None]
            if known:
                slow = sum(each < _SLOW for each in known)
                mean = statistics.geometric_mean(known)
                lines.append(
                    f"{group}, {size}: {len(known)} rows, {mean:.2f} times the faster of the "
                    f"others (geometric mean), {slow} below {_SLOW}"
                )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operation_tables", description=__doc__
    )
    parser.add_argument("--group", action="append", choices=GROUPS, help="one of the tables")
    parser.add_argument("--size", action="append", choices=SIZES, help="one of the sizes")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th row from the I-th")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row and size")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--from-json", type=Path, nargs="+", help="show these; run nothing")
    options = parser.parse_args()
    if options.from_json:
        results = merged([json.loads(path.read_text()) for path in options.from_json])
    else:
        groups, sizes = options.group or list(GROUPS), options.size or list(SIZES)
        with torch.no_grad():
            results = measure(groups, sizes, options.part, options.seconds)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(results) + "\n")
    print(markdown(results))
    print()
    print(summary(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
