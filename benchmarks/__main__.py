"""`python -m benchmarks`: eager, plait and torch.compile on the same work, in the same run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.chart import chart
from benchmarks.measure import SYSTEMS
from benchmarks.runner import machine, run_overhead, run_workload
from benchmarks.tables import failures, markdown, print_tables
from benchmarks.workloads import WORKLOADS, workload


def _measured(
    arguments: argparse.Namespace, names: list[str], systems: list[str], console: Console
) -> dict[str, Any]:
    """The results, written after each row: a run that is interrupted can go on."""
    results: dict[str, Any] = {"machine": machine(), "workloads": {}}
    if arguments.goes_on and arguments.json and arguments.json.exists():
        results |= json.loads(arguments.json.read_text())

    def keep() -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2) + "\n")

    keep()
    for name in names:
        if name in results["workloads"]:
            continue
        console.print(f"[dim]{time.strftime('%H:%M:%S')} {workload(name).title}[/]")
        results["workloads"][name] = run_workload(
            workload(name), systems, arguments.seconds, only_steady=arguments.steady
        )
        keep()
    for what in () if arguments.no_overhead else ("overhead", "wrapper"):
        if what not in results:
            results[what] = run_overhead(what, systems, min(arguments.seconds, 2.0))
            keep()
    return results


def main() -> int:
    names = [each.name for each in WORKLOADS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"which to run; all of: {', '.join(names)}")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="separated by commas")
    parser.add_argument("--seconds", type=float, default=3.0, help="of steady state, each")
    parser.add_argument(
        "--no-overhead", action="store_true", help="leave out dispatch and wrapper alone"
    )
    parser.add_argument("--steady", action="store_true", help="leave out first calls and memory")
    parser.add_argument("--json", type=Path, help="write the results to this file, row by row")
    parser.add_argument(
        "--continue", action="store_true", dest="goes_on", help="keep what that file has already"
    )
    parser.add_argument("--svg", type=Path, help="draw the results into this file")
    parser.add_argument("--markdown", type=Path, help="write the README's tables to this file")
    parser.add_argument("--from-json", type=Path, help="show these results; run nothing")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.workloads) - set(names))
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(names)}")
    systems = arguments.systems.split(",")
    if not set(systems) <= set(SYSTEMS):
        parser.error(f"the systems are {', '.join(SYSTEMS)}")
    console = Console(width=None if sys.stdout.isatty() else 150)
    if arguments.from_json:
        results = json.loads(arguments.from_json.read_text())
    else:
        results = _measured(arguments, arguments.workloads or names, systems, console)
    print_tables(console, results)
    if arguments.svg:
        arguments.svg.write_text(chart(results), encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(results) + "\n")
    return 1 if failures(results) else 0


if __name__ == "__main__":
    sys.exit(main())
