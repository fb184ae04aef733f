"""Sizes that depend on data, where what is compiled checks all that was assumed of them.

Torch's rules for fake tensors assume of such a size that it is neither 0 nor 1, where they ask. The
backend finds out whether the shapes that follow are those of each call. Where they are not, it
raises `CheckFailedError`, and the call is made as plain Python. So each operator on such a tensor
is a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_utils.data_sizes import data_symbols

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_OF_MEMORY = frozenset({"stride", "is_contiguous", "storage_offset", "is_set_to"})
"""What is asked of a tensor's place in memory, which no check is made of."""


def require_checked(state: TraceState, target: Any, given: Any) -> None:
    """Break before an operator on sizes that depend on data where no check may be made."""
    if not _are_checked(state) or not data_symbols(given):
        return
    if _name(target) in _OF_MEMORY:
        raise TraceBreakError("GB0004", f"{_name(target)} of a size that depends on data")
    _require(state, target)


def require_checked_result(state: TraceState, target: Any, result: Any) -> None:
    """The same for one that gives such sizes."""
    if _are_checked(state) and data_symbols(result):
        _require(state, target)


def _are_checked(state: TraceState) -> bool:
    return state.symbols is not None and state.policy.data_sizes


def _require(state: TraceState, target: Any) -> None:
    from plait_bytecode_tracer.graph.checks import can_check, note_check

    if not can_check(state):
        reason = f"{_name(target)} has a size that depends on data, where the call cannot be undone"
        raise TraceBreakError("GB0008", reason)
    note_check(state)


def _name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))
