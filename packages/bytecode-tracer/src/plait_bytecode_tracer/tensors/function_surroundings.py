"""Whether a function works with nothing but what it is given, by what its code names."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.kernels.mentions import codes_in
from plait_bytecode_tracer.values.constants import is_constant

_WRITES = frozenset(
    {
        *("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"),
        *("STORE_SUBSCR", "DELETE_SUBSCR"),
    }
)
_TO_CELLS = frozenset({"STORE_DEREF", "DELETE_DEREF"})
_TO_OBJECTS = frozenset({"STORE_ATTR", "STORE_SUBSCR"})
_FIXED = torch.dtype, torch.layout, torch.memory_format, types.BuiltinFunctionType
_LIBRARIES = frozenset({"torch", "math", "operator", "builtins", "typing", "functools"})


def has_surroundings(function: Any, *, constants: bool = True, fills: bool = False) -> bool:
    """Whether a function may read or change what is not handed to it: variables of its module or of
    the function around it, attributes of classes. Functions that it names are looked at, too.

    Args:
        function: of a program's.
        constants: whether numbers and texts under its names count.
        fills: whether it is there to write to what it is given.
    """
    seen: set[types.FunctionType] = set()
    waiting = [function]
    while waiting:
        found = waiting.pop()
        if isinstance(found, types.FunctionType) and not _is_of_library(found):
            if found in seen:
                continue
            seen.add(found)
            writes = set(_writes_of(found))
            if writes and not (fills and writes <= _TO_OBJECTS):
                return True
            waiting += _named(found)
        elif not _is_fixed(found) and (constants or not is_constant(found)):
            return True
    return False


def refuse_surroundings(operator: Any, result: Any) -> None:
    """Break at an operator of a program's whose backward is Python that may do so.

    A backward runs once, when the graph of the gradients is recorded.
    """
    for tensor in result if isinstance(result, tuple | list) else [result]:
        registered = _registered(getattr(tensor, "grad_fn", None))
        if registered is None:
            continue
        backward, setup = registered._backward_fn, registered._setup_context_fn
        reads = has_surroundings(backward, constants=False)
        if reads or (setup is not None and has_surroundings(setup, constants=False, fills=True)):
            text = f"{operator}, whose backward reads or changes what it is not given"
            raise TraceBreakError("GB0002", text)


def _registered(node: Any) -> Any:
    """What `torch.library.register_autograd` was given for the operator that has made a node."""
    backward: Any = getattr(getattr(type(node), "_forward_cls", None), "backward", None)
    for cell in getattr(backward, "__closure__", None) or ():
        try:
            if hasattr(cell.cell_contents, "_backward_fn"):
                return cell.cell_contents
        except ValueError:  # not set yet
            continue
    return None


def _is_fixed(value: Any) -> bool:
    """Whether a value that a function names is the same at all times, with all that it holds."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in _LIBRARIES
    is_code = isinstance(value, type | types.FunctionType) or callable(value)
    return isinstance(value, _FIXED) or (is_code and _is_of_library(value))


def _is_of_library(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in _LIBRARIES


def _writes_of(function: types.FunctionType) -> Iterator[str]:
    """The instructions of a function that write to what is not its own, or to objects."""
    outer = function.__code__.co_freevars
    for code in codes_in(function.__code__):
        for each in dis.Bytecode(code):
            if each.opname in _WRITES or (each.opname in _TO_CELLS and each.argval in outer):
                yield each.opname


def _named(function: types.FunctionType) -> Iterator[object]:
    names = {name for code in codes_in(function.__code__) for name in code.co_names}
    yield from (function.__globals__[name] for name in names if name in function.__globals__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None
