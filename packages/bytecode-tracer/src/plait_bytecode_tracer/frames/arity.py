"""Calls with other arguments than a function takes: the TypeError that Python raises."""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.twins import deques, proxies, small, streams, threads
from plait_bytecode_tracer.values.variables import Known, Variable

_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_TWIN_FILES = frozenset(
    str(module.__file__) for module in (deques, proxies, small, streams, threads)
)
"""Code that stands for functions in C, which word such errors otherwise."""
_COUNTING = frozenset({getattr, next, iter, super, vars, dir, slice, range, zip, itertools.product})
"""Without a signature; they count their arguments before anything else."""
_EMPTY: types.CodeType = (lambda: None).__code__


def refuse(
    function: Callable[..., Any], args: list[Variable], kwargs: dict[str, Variable]
) -> NoReturn:
    """Raise what a C function says of a number or names of arguments that it does not take.

    It is called for real, with None for each argument: one that checks its arguments by a
    signature that they do not fit does nothing else. Others break the trace.
    """
    name = getattr(function, "__qualname__", str(function))
    if function in _COUNTING:
        refuse_call(function, args, kwargs)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except ValueError:
        found = "arguments that cannot be checked"
    except TypeError:
        _call_for_error(function, args, kwargs)
        found = "other arguments than it takes"
    else:
        found = "arguments that are not followed"
    raise TraceBreakError("GB0006", f"{name} is called with {found}")


_NOTHING: dict[Any, Any] = {}
_VIEWS = {type(view): view for view in (_NOTHING.keys(), _NOTHING.values(), _NOTHING.items())}


def refuse_method(
    kind: type, name: str, args: list[Variable], kwargs: dict[str, Variable]
) -> NoReturn:
    """The same for a method of a builtin container, by an empty one."""
    if kind in (list, tuple, dict, set, frozenset):
        _call_for_error(getattr(kind(), name), args, kwargs)
    elif kind in _VIEWS:
        _call_for_error(getattr(_VIEWS[kind], name), args, kwargs)
    raise TraceBreakError("GB0006", f"{kind.__name__}.{name} is called with other arguments")


def refuse_call(
    function: Callable[..., Any], args: Sequence[Variable], kwargs: dict[str, Variable]
) -> NoReturn:
    """The same for a C function that looks at how it is called before anything else."""
    _call_for_error(function, args, kwargs)
    raise TraceBreakError("GB0006", f"{function.__name__} is called with other arguments")


def refuse_by_count(cls: type, count: int) -> NoReturn:
    """The same for a C class that does nothing but keep its arguments."""
    _call_for_error(cls, [Known(None)] * count, {})
    raise TraceBreakError("GB0006", f"{cls.__name__} is called with other arguments")


def _call_for_error(
    function: Callable[..., Any], args: Sequence[Variable], kwargs: dict[str, Variable]
) -> None:
    try:
        function(*[None for _ in args], **dict.fromkeys(kwargs))
    except TypeError as error:
        raise python_error(error) from error


def refuse_python(
    code: types.CodeType,
    defaults: list[Variable],
    keyword_defaults: dict[str, Variable],
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> NoReturn:
    """Raise what a Python function says of arguments that do not fit its parameters."""
    if code.co_filename in _TWIN_FILES:
        raise TraceBreakError("GB0006", f"{code.co_name} is called with other arguments")
    empty = code.replace(
        co_code=_EMPTY.co_code,
        co_consts=_EMPTY.co_consts,
        co_exceptiontable=_EMPTY.co_exceptiontable,
        co_stacksize=_EMPTY.co_stacksize,
        co_linetable=_EMPTY.co_linetable,
        co_flags=code.co_flags & ~_SUSPENDING,
    )
    cells = tuple(types.CellType() for _ in code.co_freevars)
    stub = types.FunctionType(empty, {}, None, (None,) * len(defaults), cells or None)
    stub.__kwdefaults__ = dict.fromkeys(keyword_defaults)
    stub.__qualname__ = code.co_qualname
    _call_for_error(stub, args, kwargs)
    raise TraceBreakError("GB0006", f"{code.co_name} is called with other arguments than it takes")
