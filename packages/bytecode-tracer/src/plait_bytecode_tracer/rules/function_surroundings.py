"""Whether a function works with nothing but what it is given, by what its code names."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

import torch

_WRITES = frozenset(
    {
        *("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"),
        *("STORE_SUBSCR", "DELETE_SUBSCR"),
    }
)
_FIXED = torch.dtype, torch.layout, torch.memory_format, types.BuiltinFunctionType
_LIBRARIES = frozenset({"torch", "math", "operator", "builtins", "typing", "functools"})


def has_surroundings(function: Any) -> bool:
    """Whether a function may read or change what is not handed to it: variables of its module or of
    the function around it, attributes of classes. Functions that it names are looked at, too."""
    seen: set[types.FunctionType] = set()
    waiting = [function]
    while waiting:
        found = waiting.pop()
        if isinstance(found, types.FunctionType) and not _is_of_library(found):
            if found in seen:
                continue
            seen.add(found)
            if any(each.opname in _WRITES for code in _codes(found) for each in dis.Bytecode(code)):
                return True
            waiting += _named(found)
        elif not _is_fixed(found):
            return True
    return False


def _is_fixed(value: Any) -> bool:
    """Whether a value that a function names is the same at all times, with all that it holds."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in _LIBRARIES
    is_code = isinstance(value, type | types.FunctionType) or callable(value)
    return isinstance(value, _FIXED) or (is_code and _is_of_library(value))


def _is_of_library(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in _LIBRARIES


def _named(function: types.FunctionType) -> Iterator[object]:
    names = {name for code in _codes(function) for name in code.co_names}
    yield from (function.__globals__[name] for name in names if name in function.__globals__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None


def _codes(function: types.FunctionType) -> Iterator[types.CodeType]:
    """The code of a function, and of those inside it."""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
