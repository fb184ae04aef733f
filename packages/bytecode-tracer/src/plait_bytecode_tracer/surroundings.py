"""Whether the tracer itself can run: what it runs on may be the program's to change."""

from __future__ import annotations

import builtins
import types

_REPLACED = frozenset(
    {"print", "open", "input", "breakpoint", "__import__", "help", "exit", "quit"}
)
"""What programs replace without harm to the tracer."""
_OWN = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type | types.BuiltinFunctionType) and name not in _REPLACED
}
_ROOM = 120
"""How many calls deep the tracer may go at least."""


def hindrance() -> str | None:
    """Why nothing can be traced now; None if it can."""
    held = vars(builtins)
    for name, value in _OWN.items():
        if held.get(name) is not value:
            return f"the builtin {name} is replaced"
    return None if _has_room(_ROOM) else "little is left of the recursion limit"


def _has_room(depth: int) -> bool:
    try:
        return depth == 0 or _has_room(depth - 1)
    except RecursionError:
        return False
