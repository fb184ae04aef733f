"""Cases, how they ended, and how that is counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

CHECKS = "tests", "training", "models", "random", "operators"
"""The parts that check, in the order in which their cases begin: the longest first."""


class Outcome(Enum):
    """How a case ended."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_HERE = "not for this device"
    """Eager does not run it there, or a test says that it is for another machine."""
    NOT_REACHED = "not reached in time"


@dataclass(frozen=True, slots=True)
class Case:
    """What is checked by itself."""

    part: str
    name: str
    device: str
    limit: float
    """Seconds after which it is stuck."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a case ended."""

    case: Case
    outcome: Outcome
    detail: str = ""
    """In one line: what is wrong, or how it was run where it is right."""
    text: str = ""
    """All that is known of what is wrong."""
    count: int = 1
    """How many things were checked: a file of tests has several."""
    seconds: float = 0.0

    def line(self) -> str:
        """One line for people."""
        return f"{self.outcome.value.upper()} {self.case.part}: {self.case.name}: {self.detail}"


def score(part: str, results: Iterable[Result]) -> str:
    """How many of a part's cases ended how, and how the right ones were run."""
    found = [each for each in results if each.case.part == part]
    counts: Counter[Outcome] = Counter()
    ways: Counter[str] = Counter()
    for each in found:
        counts[each.outcome] += each.count
        if each.outcome is Outcome.RIGHT and each.detail:
            ways[each.detail] += each.count
    judged = sum(number for kind, number in counts.items() if kind is not Outcome.NOT_HERE)
    shown = "; ".join(f"{number} {way}" for way, number in ways.most_common(6))
    others = [
        f"{counts[kind]} {kind.value}"
        for kind in (Outcome.WRONG, Outcome.NOT_REACHED, Outcome.NOT_HERE)
        if counts[kind]
    ]
    listed = ", ".join([f"{counts[Outcome.RIGHT]} of {judged} right", *others])
    seconds = sum(each.seconds for each in found)
    return f"{part}: {listed}; {seconds:.0f} s of processes" + (f" ({shown})" if shown else "")


def is_good(results: Iterable[Result]) -> bool:
    """Whether nothing is wrong, and nothing was left out for want of time."""
    return all(each.outcome in (Outcome.RIGHT, Outcome.NOT_HERE) for each in results)


def write_json(results: Iterable[Result], place: Path) -> None:
    """All results, with the whole text of each failure."""
    rows = [
        {**asdict(each.case), **asdict(each), "case": each.case.name, "outcome": each.outcome.name}
        for each in results
    ]
    place.write_text(json.dumps(rows, indent=1))
