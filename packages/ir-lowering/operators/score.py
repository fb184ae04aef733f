"""Verdicts of single cases, and how they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a case ended."""

    LOOPS = "loops alone"
    EXTERNAL = "with external calls"
    EACH_COUNT = "with a program for each number of results"
    EACH_SIZE = "with a program for each size"
    EAGERLY = "eagerly in part or as a whole"
    EAGER_RAISES = "eager raises too"
    UNFINISHED = "unfinished"
    WRONG = "wrong"


RIGHT = (
    *(Outcome.LOOPS, Outcome.EXTERNAL),
    *(Outcome.EACH_COUNT, Outcome.EACH_SIZE, Outcome.EAGERLY),
)


@dataclass(frozen=True)
class Verdict:
    """One operator in one dtype."""

    operator: str
    dtype: str
    outcome: Outcome
    detail: str = ""
    """What differs, what is called, or why it runs eagerly."""

    @property
    def case(self) -> str:
        """`add[float32]`."""
        return f"{self.operator}[{self.dtype}]"


def report(name: str, verdicts: Iterable[Verdict], *, reasons: int) -> bool:
    """Print the score, what is wrong, and why others are no loops; whether all is right."""
    found = [each for each in verdicts if each.outcome is not Outcome.EAGER_RAISES]
    counts = Counter(each.outcome for each in found)
    for each in found:
        if each.outcome in (Outcome.WRONG, Outcome.UNFINISHED):
            print(f"{each.outcome.value.upper()} {each.case}: {each.detail}")
    for outcome in (Outcome.EAGERLY, Outcome.EACH_SIZE, Outcome.EACH_COUNT, Outcome.EXTERNAL):
        details = Counter(each.detail for each in found if each.outcome is outcome)
        for detail, number in details.most_common(reasons):
            print(f"{number:5} {outcome.value}: {detail[:150]}")
    right = sum(counts[kind] for kind in RIGHT)
    listed = ", ".join(f"{counts[kind]} {kind.value}" for kind in Outcome if counts[kind])
    print(f"{name}: {right}/{len(found)} right ({listed})")
    print(f"{name}: {_share(found)}", flush=True)
    return right == len(found)


def _share(found: list[Verdict]) -> str:
    """Which operators are loops alone in every dtype in which they are compared."""
    operators = {each.operator for each in found}
    others = {each.operator for each in found if each.outcome is not Outcome.LOOPS}
    alone = len(operators) - len(others)
    share = alone / len(operators) if operators else 0.0
    return f"{alone}/{len(operators)} operators ({share:.1%}) are loops alone in every dtype"
