"""Whether a function may launch Triton kernels, by the names that its code uses."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any


def mentions_kernels(function: Any) -> bool:
    """Whether a function of a program's, or one that it names, names a kernel."""
    seen: set[types.FunctionType] = set()
    waiting = [function]
    while waiting:
        found = waiting.pop()
        if _is_kernel(found):
            return True
        if isinstance(found, types.FunctionType) and found not in seen and not _is_of_torch(found):
            seen.add(found)
            waiting += _named(found)
    return False


def _is_kernel(value: object) -> bool:
    return type(value).__module__.startswith("triton.runtime")


def _is_of_torch(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in ("torch", "triton")


def _named(function: types.FunctionType) -> Iterator[object]:
    """What the names in a function's code stand for: variables, and attributes of modules."""
    names = {name for code in codes_in(function.__code__) for name in code.co_names}
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not set yet
            continue
    for value in values:
        if isinstance(value, types.ModuleType):
            held = vars(value)
            yield from (held[name] for name in names if name in held)
        else:
            yield value


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code, and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)
