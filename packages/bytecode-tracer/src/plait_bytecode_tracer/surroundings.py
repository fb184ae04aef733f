"""Whether the tracer itself can run: what it runs on may be the program's to change.

Torch function modes that are active would see what the tracer, its guards and the graph do. They
are put aside for the call, which is traced as one that enters them itself; so are those that a call
has entered before a graph break, for what goes on after it. The context of the default device
stays: it is below all others, and the graph is traced and run within it.
"""

from __future__ import annotations

import builtins
import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.residual.steps import hide
from plait_bytecode_tracer.tensors.ambient import entered_modes

_c: Any = torch._C

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
LITTLE_ROOM = "little is left of the recursion limit"


def hindrance() -> str | None:
    """Why nothing can be traced now; None if it can."""
    held = vars(builtins)
    for name, value in _OWN.items():
        if held.get(name) is not value:
            return f"the builtin {name} is replaced"
    return None if _has_room(_ROOM) else LITTLE_ROOM


def loads_what_traces() -> bool:
    """Load what traces and compiles, which a process that finds its entries stored does without.

    False where the recursion limit does not let it: modules import each other.
    """
    try:
        import plait_bytecode_tracer.aftermath.counting
        import plait_bytecode_tracer.attempts
        import plait_bytecode_tracer.graph_call  # noqa: F401 - to load it
    except RecursionError:
        return False
    return True


def _has_room(depth: int) -> bool:
    try:
        return depth == 0 or _has_room(depth - 1)
    except RecursionError:
        return False


def modes_around() -> tuple[Any, ...] | None:
    """The torch function modes that are active, outermost first; None if there is none to follow.

    The context of the default device is not among them.
    """
    count = _c._len_torch_function_stack()
    if count == 0 or not _c._is_torch_function_mode_enabled():
        return None
    first = count - entered_modes()
    modes = tuple(_c._get_function_stack_at(place) for place in range(first, count))
    return modes or None


@contextlib.contextmanager
def put_aside() -> Iterator[None]:
    """Run without torch function modes.

    They are there again at the end, unless what ran has entered modes and leaves them so.
    """
    modes = take_aside()
    try:
        yield
    finally:
        if entered_modes() == 0:
            for mode in reversed(modes):
                _c._push_on_torch_function_stack(mode)


def take_aside() -> list[Any]:
    """Leave all torch function modes, but for the default device; those left, innermost first."""
    modes: list[Any] = []
    for _ in range(entered_modes()):
        modes.append(_c._pop_torch_function_stack())
    return modes


def _call_under(
    modes: Sequence[Any],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function under modes, which stay active: put-aside ones are left as they were."""
    for mode in modes:
        _c._push_on_torch_function_stack(mode)
    return function(*args, **kwargs)


def _enter_all(modes: Sequence[Any]) -> None:
    for mode in modes:
        _c._push_on_torch_function_stack(mode)


def going_on_under(function: types.FunctionType) -> types.FunctionType:
    """What goes on after a break under modes, which are its first argument: it enters them."""
    from plait_bytecode_tracer.breaking.resume import under

    return under(_enter_all, function)


hide(_call_under)
hide(_enter_all)
call_under: Any = _call_under
