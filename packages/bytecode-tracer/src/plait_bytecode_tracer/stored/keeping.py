"""What a compiled function asks of who keeps stored entries."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.capture import Capture
    from plait_bytecode_tracer.stored.entry import StoredEntry


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored entry that fits this process so far, and how to make what runs its graph."""

    entry: StoredEntry
    load: Callable[[], Callable[..., Any] | None]
    """What runs the graph; None where that is not to be had."""


class Keeper(Protocol):
    """Keeps entries, and gives those back that other processes have stored."""

    def entries(self, function: types.FunctionType) -> Iterator[Kept]:
        """The entries of a function that may fit its calls. Raises nothing."""

    def missed(self, reason: str) -> None:
        """Why a stored entry was of no use to a call."""

    def begin(self, function: types.FunctionType, capture: Capture) -> None:
        """A call was captured, and is compiled next. Raises nothing."""

    def keep(self) -> None:
        """Store what was captured last and has been compiled, if that can be. Raises nothing."""
