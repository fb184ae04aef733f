"""Verdicts of single cases, and how a suite's are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a case ended; only `WRONG` is a defect."""

    EQUAL = "equal to eager"
    REFUSED = "refused, so run eagerly"
    EAGER_RAISES = "eager raises too"
    NOTHING = "nothing to differentiate"
    WRONG = "wrong"


@dataclass(frozen=True)
class Verdict:
    """One case."""

    case: str
    outcome: Outcome
    detail: str = ""


def report(name: str, verdicts: Iterable[Verdict], *, reasons: int = 0) -> bool:
    """Print the score, and what is wrong; whether nothing is."""
    found = list(verdicts)
    counts = Counter(each.outcome for each in found)
    for each in found:
        if each.outcome is Outcome.WRONG:
            print(f"WRONG {each.case}: {each.detail}")
    refused = Counter(each.detail for each in found if each.outcome is Outcome.REFUSED)
    for detail, number in refused.most_common(reasons):
        print(f"{number:5} refused: {detail[:150]}")
    compared = counts[Outcome.EQUAL] + counts[Outcome.REFUSED] + counts[Outcome.WRONG]
    listed = ", ".join(f"{counts[kind]} {kind.value}" for kind in Outcome if counts[kind])
    right = compared - counts[Outcome.WRONG]
    print(f"{name}: {right}/{compared} right ({listed})", flush=True)
    return not counts[Outcome.WRONG]
