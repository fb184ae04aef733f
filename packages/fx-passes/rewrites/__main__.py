"""`python -m rewrites`: random graphs through all passes; exits 1 if a rewrite changes anything."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from gradients.processes import Task, judged
from gradients.score import Outcome, Verdict, report

from rewrites.check import PASSES, check
from rewrites.programs import Kind

AT_ONCE = 100
_FIRED = "fired "


def main() -> int:
    chosen = _parser().parse_args()
    started = time.monotonic()
    torch.set_num_threads(1)
    kinds = [each for each in Kind if not chosen.kinds or each.value in chosen.kinds]
    tasks = [task for kind in kinds for task in _tasks(kind, chosen.first, chosen.programs)]
    kept: dict[str, list[Verdict]] = {kind.value: [] for kind in kinds}
    fired: Counter[str] = Counter()
    until = started + chosen.minutes * 60
    for task, verdicts in judged(tasks, chosen.jobs, chosen.limit, until):
        for each in verdicts:
            if each.case.startswith(_FIRED):
                fired.update(json.loads(each.detail))
            else:
                kept[task.suite].append(each)
    right = True
    for kind, found in kept.items():
        right &= report(kind, found)
    print(table(fired))
    if chosen.json:
        chosen.json.write_text(json.dumps(fired))
    silent = [each.name for kind in kinds for each in PASSES[kind] if not fired[each.name]]
    if silent and chosen.programs >= 1000:
        print(f"never rewrote anything: {sorted(set(silent))}")
    print(f"{time.monotonic() - started:.0f} s")
    return int(not right)


def _tasks(kind: Kind, first: int, count: int) -> Iterator[Task]:
    for start in range(first, first + count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, first + count))

        def programs(numbers: range = numbers) -> Iterator[Verdict]:
            fired: Counter[str] = Counter()
            for number in numbers:
                yield check(number, kind, fired)
            # How often each rule applied comes back as one more verdict.
            yield Verdict(f"{_FIRED}{numbers[0]}", Outcome.NOTHING, json.dumps(fired))

        yield Task(kind.value, f"{kind.value} {numbers[0]}-{numbers[-1]}", programs)


def table(fired: Counter[str]) -> str:
    """How often passes and their rules rewrote something."""
    width = max(map(len, fired), default=0)
    return "\n".join(f"{name:{width}} {count:8}" for name, count in sorted(fired.items()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rewrites", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", help=", ".join(f"'{each.value}'" for each in Kind) + "; all if none"
    )
    parser.add_argument("--programs", type=int, default=3000, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes at once; 0: none but this"
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds for a hundred programs")
    parser.add_argument("--minutes", type=float, default=1e6, help="for the whole session")
    parser.add_argument("--json", type=Path, help="write how often each rule applied to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
