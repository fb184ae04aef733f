"""All of it, with a printed score: `python -m reliability [kills] [rounds]`, in `meta`."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from reliability import disks
from reliability.kills import Outcome, run_kills
from reliability.threads import run_threads


def main(kills: int = 100, rounds: int = 20) -> int:
    """Processes that are killed, threads and disks; returns how many things went wrong."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_kills(Path(folder), kills, 4, seed, tell=_progress)
    wrong = _told(f"4 processes share a cache: {outcome}", outcome.wrong)
    wrong += _told(f"{rounds} rounds of 8 threads", run_threads(rounds, 8, seed))
    if not disks.can_mount():
        print("file systems cannot be mounted here: nothing is known of full disks")
        return wrong + 1
    for case in disks.CASES:
        with tempfile.TemporaryDirectory() as folder:
            wrong += _told(case, disks.run_disk(Path(folder), case, seed))
    print(f"{wrong} wrong")
    return wrong


def _progress(outcome: Outcome) -> None:
    if outcome.killed % 10 == 0:
        print(outcome, flush=True)


def _told(what: str, wrong: list[str]) -> int:
    print(f"{what}: {'wrong' if wrong else 'right'}", *wrong[:5], sep="\n    ", flush=True)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
