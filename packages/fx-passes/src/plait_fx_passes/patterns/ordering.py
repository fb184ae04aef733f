"""Where a replacement of several results can stand.

It needs all that its results are computed from, and must stand before all of their users. Where
some of what the last result needs comes after the first result, users of the first move behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import fx

from plait_fx_passes.passes.cleanup import has_effects
from plait_fx_passes.patterns.matching import Match
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """The node before which a replacement stands, and what is to move behind it, in order."""

    before: fx.Node
    behind: Sequence[fx.Node]
    _start: fx.Node

    @classmethod
    def at(cls, before: fx.Node, behind: Sequence[fx.Node] = ()) -> Room:
        return cls(before, behind, before.prev)

    def inserting(self) -> AbstractContextManager[None]:
        """Nodes made inside stand there."""
        inserting: AbstractContextManager[None] = self.before.graph.inserting_before(self.before)
        return inserting

    def clear(self) -> None:
        """Remove what was made there."""
        while (node := self.before.prev) is not self._start:
            node.graph.erase_node(node)

    def settle(self) -> None:
        """Move what uses the results behind the replacement."""
        for node in self.behind:
            self.before.prepend(node)


def make_room(match: Match) -> Room | None:
    """A place for the replacement; None where a result is computed from another one, or where
    effects, as random draws, would change their order."""
    first = min(match.anchors)
    last = max((node for node in match.inputs), default=first)
    room = Room.at(first) if last < first else _behind(match, first, last)
    return room if room is not None and _keeps_effects(match, room.before) else None


_FARTHEST = 500
"""So many nodes may lie between results that are computed together."""


def _behind(match: Match, first: fx.Node, last: fx.Node) -> Room | None:
    """Room behind the last input, which comes after the first result."""
    inputs, known = set(match.inputs), set(match.anchors)
    moved: list[fx.Node] = []
    node, steps = first, 0
    while node is not last:
        node, steps = node.next, steps + 1
        if steps > _FARTHEST:
            return None
        if node in known or known.isdisjoint(node.all_input_nodes):
            continue
        if node in inputs or has_effects(node):
            return None
        known.add(node)
        moved.append(node)
    return Room.at(last.next, moved)


def _keeps_effects(match: Match, before: fx.Node) -> bool:
    """Whether no other effect lies between those of the match and where it is computed."""
    effects = [node for node in match.nodes if has_effects(node)]
    if not effects:
        return True
    node, steps = min(effects), 0
    while node < before:
        steps += 1
        if steps > _FARTHEST:
            return False
        if has_effects(node) and node not in effects:
            return False
        node = node.next
    return True
