"""`python -m gradients`: gradients of compiled programs against eager; exits 1 if any differ."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from gradients import generated, operators, second
from gradients.processes import Task, judged
from gradients.score import Verdict, report
from gradients.ways import WAYS, Way, load_compiler

DTYPES = {"float64": torch.float64, "float32": torch.float32}
PROGRAMS_AT_ONCE = 50


def main() -> int:
    chosen = _parser().parse_args()
    started = time.monotonic()
    torch.set_num_threads(1)
    operators.prepare()
    load_compiler()
    index, count = (int(each) for each in chosen.part.split("/"))
    tasks = list(_tasks(chosen, WAYS[chosen.through]))[index::count]
    until = started + chosen.minutes * 60
    kept: dict[str, list[Verdict]] = {each.suite: [] for each in tasks}
    for task, verdicts in judged(tasks, chosen.jobs, chosen.limit, until):
        kept[task.suite] += verdicts
        _tell(task, verdicts)
    right = True
    for suite, verdicts in kept.items():
        right &= report(f"{suite}, through {chosen.through}", verdicts, reasons=chosen.reasons)
    if chosen.json:
        plain = {
            suite: sorted((each.case, each.outcome.name, each.detail) for each in verdicts)
            for suite, verdicts in kept.items()
        }
        chosen.json.write_text(json.dumps(plain))
    print(f"{time.monotonic() - started:.0f} s")
    return int(not right)


def _tell(task: Task, verdicts: Sequence[Verdict]) -> None:
    """What is wrong is told at once, too: the session may be stopped."""
    for each in verdicts:
        if each.is_shown:
            first = (each.detail.splitlines() or [""])[0]
            print(f"{task.suite}: {each.case}: {first[:200]}", file=sys.stderr, flush=True)


def _tasks(chosen: argparse.Namespace, way: Way) -> Iterator[Task]:
    def wanted(suite: str) -> bool:
        return any(suite.startswith(each) for each in chosen.suites)

    for name, dtype in DTYPES.items():
        suite = f"operators, {name}"
        for op in operators.operators(chosen.only) if wanted(suite) else ():

            def first_order(op: object = op, dtype: torch.dtype = dtype) -> Iterator[Verdict]:
                for sample in operators.samples(op, dtype, chosen.samples):
                    yield operators.check(sample, dtype, way)

            yield Task(suite, operators.name_of(op), first_order)
    for op in operators.operators(chosen.only) if wanted("gradgradcheck") else ():
        if op.name in second.OPERATORS:

            def second_order(op: object = op) -> Iterator[Verdict]:
                for sample in operators.samples(op, torch.float64, chosen.samples):
                    yield second.check_second(sample, way)

            yield Task("gradgradcheck", operators.name_of(op), second_order)
    last = chosen.first + chosen.programs
    for suite in ("random programs", "wide programs"):
        starts = range(chosen.first, last, PROGRAMS_AT_ONCE) if wanted(suite) else ()
        for start in starts:
            numbers = range(start, min(start + PROGRAMS_AT_ONCE, last))

            def programs(
                numbers: range = numbers, wide: bool = suite.startswith("wide")
            ) -> Iterator[Verdict]:
                for number in numbers:
                    yield generated.check(number, way, wide=wide)

            yield Task(suite, f"programs {numbers[0]}-{numbers[-1]}", programs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gradients", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", default=["operators", "gradgradcheck", "random", "wide"],
        help="operators, 'operators, float64', gradgradcheck, random, wide",
    )  # fmt: skip
    parser.add_argument("--through", choices=WAYS, default="joint", help="what compiles")
    parser.add_argument("--samples", type=int, default=4, help="of each operator")
    parser.add_argument("--programs", type=int, default=4000, help="how many random programs")
    parser.add_argument("--first", type=int, default=0, help="number of the first random program")
    parser.add_argument("--only", help="one operator")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes at once; 0: none but this"
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds for one operator")
    parser.add_argument("--minutes", type=float, default=1e6, help="for the whole session")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th, from the I-th")
    parser.add_argument("--reasons", type=int, default=8, help="how many refusals to list")
    parser.add_argument("--json", type=Path, help="write all verdicts to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
