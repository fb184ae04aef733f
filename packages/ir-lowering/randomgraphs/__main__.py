"""`python -m randomgraphs`: random programs against eager; exits 1 if any differ."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from randomgraphs.check import BACKENDS, Outcome, Verdict, check

PROGRESS = 50
"""After so many programs each time it is told how far the session is."""


def main() -> int:
    chosen = _parser().parse_args()
    started = time.monotonic()
    verdicts = []
    for verdict in _judged(chosen, started + chosen.minutes * 60):
        verdicts.append(verdict)
        if verdict.outcome is not Outcome.EQUAL:
            _tell(verdict, chosen.scripts)
        if len(verdicts) % PROGRESS == 0:
            print(f"{len(verdicts)} programs, {time.monotonic() - started:.0f} s", flush=True)
    right = report(verdicts)
    print(f"{time.monotonic() - started:.0f} s")
    return int(not right)


def _judged(chosen: argparse.Namespace, until: float) -> Iterator[Verdict]:
    """Each program in a process of a pool, which a crash or a hang does not end."""
    backends = [each for each in BACKENDS if each in chosen.backends.split(",")]
    context = multiprocessing.get_context("fork")
    with ProcessPool(chosen.jobs, max_tasks=50, context=context) as pool:
        numbers = chosen.numbers or range(chosen.start, chosen.start + chosen.programs)
        given = [
            (number, pool.schedule(check, [number, backends, chosen.shrink], timeout=chosen.limit))
            for number in numbers
        ]
        for number, future in given:
            if time.monotonic() > until:
                future.cancel()
                continue
            try:
                yield future.result()
            except TimeoutError:
                yield Verdict(number, Outcome.UNFINISHED, "took too long")
            except ProcessExpired as error:
                yield Verdict(number, Outcome.WRONG, f"died ({error.exitcode})")
            except Exception as error:  # the session's own fault, but told with the others
                told = f"not judged: {type(error).__name__}: {error}"
                yield Verdict(number, Outcome.WRONG, told)


def _tell(verdict: Verdict, folder: Path | None) -> None:
    print(f"{verdict.outcome.value} program {verdict.number}: {verdict.detail[:300]}", flush=True)
    if folder is not None and verdict.script:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"program_{verdict.number}.py").write_text(verdict.script)


def report(verdicts: list[Verdict]) -> bool:
    """Print the score; whether all is right."""
    counts = Counter(each.outcome for each in verdicts)
    equal = [each for each in verdicts if each.outcome is Outcome.EQUAL]
    if equal:
        steps = sum(each.steps for each in equal) / len(equal)
        loose = sum(each.loose[0] for each in equal)
        total = sum(each.loose[1] for each in equal)
        print(f"{steps:.0f} steps a program; {loose / max(total, 1):.1%} of the elements are loose")
        calls = Counter(name for each in equal for name in each.calls)
        told = ", ".join(f"{name} {count}" for name, count in calls.most_common(12))
        print(f"called externally by so many programs: {told}")
    bad = counts[Outcome.WRONG] + counts[Outcome.UNFINISHED]
    told = ", ".join(f"{number} {outcome.value}" for outcome, number in counts.items())
    print(f"randomgraphs: {counts[Outcome.EQUAL]} of {len(verdicts)} right ({told})")
    return not bad


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m randomgraphs", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="programs; all if none is named")
    parser.add_argument("--programs", type=int, default=1000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one's number")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="what runs them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one program")
    parser.add_argument("--shrink", type=float, default=120, help="seconds to make one small")
    parser.add_argument("--minutes", type=float, default=1e6, help="for the whole session")
    parser.add_argument("--scripts", type=Path, help="folder for scripts of what is wrong")
    return parser


if __name__ == "__main__":
    sys.exit(main())
