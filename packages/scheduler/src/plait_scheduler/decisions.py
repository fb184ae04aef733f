"""Records of what the scheduler decided and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class DecisionKind(Enum):
    """What was decided."""

    POINTWISE = "pointwise fusion"
    REDUCTION = "reduction fusion"
    SIBLING = "sibling fusion"
    INLINE = "producer inlining"
    SPLIT = "reduction split"
    IN_PLACE = "in-place reuse"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about two buffers' definitions (or one, for a split)."""

    kind: DecisionKind
    first: str
    second: str
    accepted: bool
    reason: str
    bytes_saved: int = 0
    """Memory traffic that the decision saves, or would have saved."""

    def __str__(self) -> str:
        verb = "done" if self.accepted else "not done"
        both = f"{self.first} with {self.second}" if self.second else self.first
        return f"{self.kind.value} of {both}: {verb} because {self.reason}{_saved(self)}"


def _saved(decision: Decision) -> str:
    if not decision.bytes_saved:
        return ""
    verb = "saves" if decision.accepted else "would save"
    return f" ({verb} {decision.bytes_saved:,} bytes)"


class HasDecisions(Protocol):
    """What remembers decisions, such as a `Schedule`."""

    @property
    def decisions(self) -> Sequence[Decision]: ...


def explain(source: HasDecisions | Sequence[Decision]) -> str:
    """The decisions as text, one a line, those that were taken first."""
    decisions = source if isinstance(source, Sequence) else source.decisions
    taken = [str(d) for d in decisions if d.accepted]
    refused = [str(d) for d in decisions if not d.accepted]
    total = sum(d.bytes_saved for d in decisions if d.accepted)
    head = f"{len(taken)} decisions taken, saving {total:,} bytes; {len(refused)} refused"
    return "\n".join(
        [head, *(f"  + {line}" for line in taken), *(f"  - {line}" for line in refused)]
    )
