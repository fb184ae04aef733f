"""What is saved between forward and backward, and why, for people to read."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from plait_fx_passes.aliasing import is_view
from plait_fx_passes.printer import format_dtype
from plait_fx_passes.training.costs import CHEAP_KINDS, Cost, Kind
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_fx_passes.training.partition import Partition

_USES = 2
"""How many of its uses the table names."""


class Held(enum.Enum):
    """Whose memory a saved tensor is."""

    INPUT = "the caller's: an input"
    RESULT = "the caller's: a result"
    OWN = "held for the backward"


_NEVER = {
    Kind.RANDOM: "recomputing would draw other random numbers",
    Kind.FOREIGN: "recomputing would run an operator twice that is not torch's own",
    Kind.INPUT: "the program's input, which may be written to before the backward",
}


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that the backward gets from the forward.

    ``bytes`` is the memory that is held for the backward alone: none for what the caller holds
    anyway. ``line`` is the user's line that computed it; ``cost`` that of computing it again.
    """

    name: str
    shape: tuple[int | torch.SymInt, ...]
    dtype: torch.dtype
    bytes: int
    line: str
    held: Held
    cost: Cost
    used_by: tuple[str, ...]
    """What uses it in the backward, views and casts left out."""

    @property
    def type(self) -> str:
        """Dtype and shape: ``f32[4, 8]``."""
        return f"{format_dtype(self.dtype)}[{', '.join(map(str, self.shape))}]"

    @property
    def why(self) -> str:
        """Why it is saved, in words: what needs it, and what computing it again would take."""
        return f"{self._needed()}; {self._instead()}"

    def __str__(self) -> str:
        line = f" ({self.line})" if self.line else ""
        return f"{self.name} {self.type}, {self.why}{line}"

    def _needed(self) -> str:
        more = len(self.used_by) - _USES
        named = ", ".join(self.used_by[:_USES]) + (f" and {more} more" if more > 0 else "")
        return f"needed by {named}" if named else "a gradient itself"

    def _instead(self) -> str:
        if self.held is not Held.OWN:
            return str(self.held.value)
        if self.cost.kind in _NEVER:
            return _NEVER[self.cost.kind]
        if self.cost.kind not in CHEAP_KINDS:
            return f"recomputing costs {self.cost.kind.value}"
        if self.cost.operations > 16 * self.bytes:
            each = self.cost.operations // max(self.bytes, 1)
            return f"recomputing costs {each} operations for each byte"
        return "what it is computed from is not saved, and no smaller"


def saved_tensor(node: fx.Node, held: Held, size: int, cost: Cost, user: fx.Node) -> SavedTensor:
    """The facts about a node of the joint graph, which ``user`` stands for in the backward."""
    value = user.meta["val"]
    return SavedTensor(
        name=node.name,
        shape=tuple(value.shape),
        dtype=value.dtype,
        bytes=size,
        line=str(node.meta.get("source_line") or ""),
        held=held,
        cost=cost,
        used_by=tuple(_uses(user)),
    )


def _uses(node: fx.Node) -> Iterator[str]:
    for user in node.users:
        if is_view(user) or "passed" in user.meta:
            yield from _uses(user)
        elif user.op != "output":
            yield user.name


def print_saved(parts: Partition) -> str:
    """A table of what the backward gets from the forward, largest first, and of the totals.

    Columns are the node's name, its dtype and shape, its bytes (of memory held for the backward
    alone), why it is saved, and the user's line that computed it.
    """
    kept = sorted(parts.kept, key=lambda each: -each.bytes)
    rows = [(each.name, each.type, format_bytes(each.bytes), each.why, each.line) for each in kept]
    table = _aligned([("saved", "type", "bytes", "why", "line"), *rows])
    return "\n".join([*table, totals(parts)])


def totals(parts: Partition) -> str:
    """One line: how many bytes are saved, and how much is computed again."""
    own = sum(each.held is Held.OWN for each in parts.kept)
    text = f"{format_bytes(parts.saved_bytes)} in {own} tensors held for the backward"
    return f"{text}; {recomputed(parts)}"


def recomputed(parts: Partition) -> str:
    """What the backward computes that the forward computed too, by operator."""
    before = {node.name for node in parts.forward.graph.nodes if node.op == "call_function"}
    again = Counter(
        str(node.target).split(".")[1]
        for node in parts.backward.graph.nodes
        if node.op == "call_function"
        and node.name in before
        and "passed" not in node.meta
        and isinstance(node.target, torch._ops.OpOverload)
        and not is_view(node)
    )
    if not again:
        return "nothing is computed again"
    named = ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in again.most_common())
    return f"computed again: {named} ({parts.operations:,} operations)"


def format_bytes(count: int) -> str:
    """``0``, ``512 B``, ``1.5 MiB``."""
    if count < 1024:
        return f"{count} B" if count else "0"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:.1f} {unit}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if position == 2 else cell.ljust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
