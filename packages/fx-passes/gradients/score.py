"""Verdicts of single cases, and how a suite's are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a case ended."""

    EQUAL = "equal to eager"
    EAGERLY = "equal, and run eagerly in part or as a whole"
    EAGER_RAISES = "eager raises too"
    NOTHING = "nothing to differentiate"
    REFUSED = "refused, and not run since plait is not installed"
    UNFINISHED = "unfinished"
    WRONG = "wrong"


RIGHT = (Outcome.EQUAL, Outcome.EAGERLY)
COMPARED = (*RIGHT, Outcome.REFUSED, Outcome.UNFINISHED, Outcome.WRONG)
SHOWN = (Outcome.UNFINISHED, Outcome.WRONG)


NOT_STARTED = "not started: no time was left"


@dataclass(frozen=True)
class Verdict:
    """One case."""

    case: str
    outcome: Outcome
    detail: str = ""

    @property
    def is_shown(self) -> bool:
        """Whether the case is told by itself, and not only counted."""
        return self.outcome in SHOWN and self.detail != NOT_STARTED


def report(name: str, verdicts: Iterable[Verdict], *, reasons: int = 0) -> bool:
    """Print the score, and what is wrong; whether all that was compared is right."""
    found = list(verdicts)
    counts = Counter(each.outcome for each in found)
    for each in found:
        if each.is_shown:
            print(f"{each.outcome.value.upper()} {each.case}: {each.detail}")
    causes = (Outcome.EAGERLY, Outcome.REFUSED)
    eager = Counter(each.detail for each in found if each.outcome in causes)
    for detail, number in eager.most_common(reasons):
        print(f"{number:5} eagerly: {detail[:150]}")
    compared = sum(counts[kind] for kind in COMPARED)
    right = sum(counts[kind] for kind in RIGHT)
    listed = ", ".join(f"{counts[kind]} {kind.value}" for kind in Outcome if counts[kind])
    print(f"{name}: {right}/{compared} right ({listed})", flush=True)
    return right == compared
