"""Records of what the scheduler decided and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from typing import Protocol

from plait_utils import dataclass


class DecisionKind(Enum):
    """What was decided."""

    POINTWISE = "pointwise fusion"
    REDUCTION = "reduction fusion"
    SIBLING = "sibling fusion"
    INLINE = "producer inlining"
    JOIN = "computing in its part"
    PAD = "padding of rows"
    SLICE = "computing in slices"
    ATTENTION = "attention in one kernel"
    PICK = "picking one element of a sum"
    PRODUCT = "multiplying in a kernel"
    MIXTURE = "products in one kernel"
    SORT = "sorting in registers"
    SPLIT = "reduction split"
    WIDEN = "keeping in f32"
    IN_PLACE = "in-place reuse"
    COMBINE = "combining of launches"
    CHAIN = "chaining of launches"
    WRITE_BACK = "writing in place"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about two buffers' definitions (or one, for a split or a dtype)."""

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


@dataclass(slots=True)
class DecisionLog:
    """Decisions as they are taken, and how many more may be (`fuel`; None: any number)."""

    fuel: int | None = None
    decisions: list[Decision] = field(default_factory=list)

    def settle(
        self,
        kind: DecisionKind,
        both: tuple[str, str],
        obstacle: str | None,
        reason: str,
        bytes_saved: int = 0,
    ) -> bool:
        """Record one decision; true if it may be carried out.

        Without an obstacle and with fuel left it is taken for `reason`.
        """
        if obstacle is None and self.fuel is not None:
            if self.fuel <= 0:
                obstacle = "the fuel is used up"
            self.fuel -= 1
        accepted = obstacle is None
        why = reason if obstacle is None else obstacle
        self.decisions.append(Decision(kind, *both, accepted, why, bytes_saved))
        return accepted


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
