"""Whether the tracer itself can run: what it runs on may be the program's to change.

Torch function modes that the caller has entered would see what the tracer, its guards and the
graph do. They are put aside for the call, which is traced as one that enters them itself.
"""

from __future__ import annotations

import builtins
import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.residual.steps import hide

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


def modes_around() -> tuple[Any, ...] | None:
    """The torch function modes that are active, outermost first; None if there is none to follow.

    Device contexts are followed by themselves; where there are other modes too, nothing is.
    """
    count = _c._len_torch_function_stack()
    if count == 0 or not _c._is_torch_function_mode_enabled():
        return None
    from torch.utils._device import DeviceContext

    modes = tuple(_c._get_function_stack_at(place) for place in range(count))
    return None if any(isinstance(mode, DeviceContext) for mode in modes) else modes


@contextlib.contextmanager
def put_aside() -> Iterator[None]:
    """Run without torch function modes.

    They are there again at the end, unless what ran has entered modes and leaves them so.
    """
    modes: list[Any] = []
    while _c._len_torch_function_stack():
        modes.append(_c._pop_torch_function_stack())
    try:
        yield
    finally:
        if _c._len_torch_function_stack() == 0:
            for mode in reversed(modes):
                _c._push_on_torch_function_stack(mode)


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


hide(_call_under)
call_under: Any = _call_under
