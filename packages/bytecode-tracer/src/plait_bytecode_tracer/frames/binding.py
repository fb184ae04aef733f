"""Arguments of a call as one value for each parameter."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Binder: TypeAlias = Callable[..., tuple[Any, ...]]
"""Takes any arguments; returns a value for each parameter, in the order of locals.

Raises TypeError where the function would.
"""


def parameter_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of a function's parameters in the order of its locals."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS)
    count += bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def make_binder(function: types.FunctionType) -> Binder:
    """A binder for a function with its present code and defaults.

    It has the function's own parameters, so that Python itself binds.
    """
    names = parameter_names(function.__code__)
    if not all(name.isidentifier() for name in names):  # a comprehension's ".0"
        return lambda *args: args
    space: dict[str, Any] = {}
    items = "".join(f"{name}, " for name in names)
    exec(f"def bind({_parameters(function.__code__)}): return ({items})", space)
    made: types.FunctionType = space["bind"]
    made.__defaults__ = function.__defaults__
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def call_with_values(function: types.FunctionType, values: Sequence[Any]) -> Any:
    """Call a function with a value for each parameter, in the order of its locals."""
    positional, keywords = arguments_of(function, values)
    return function(*positional, **keywords)


def arguments_of(
    function: types.FunctionType, values: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """What to pass to a function that is to have these values in its locals, in their order."""
    code = function.__code__
    names = parameter_names(code)
    end = code.co_argcount + code.co_kwonlyargcount
    rest = list(values[end:])
    positional = list(values[: code.co_argcount])
    if code.co_flags & inspect.CO_VARARGS:
        positional += rest.pop(0)
    keywords = dict(zip(names[code.co_argcount : end], values[code.co_argcount : end], strict=True))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keywords.update(rest.pop(0))
    return positional, keywords


def _parameters(code: types.CodeType) -> str:
    names = list(parameter_names(code))
    positional = names[: code.co_argcount]
    keywords = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = names[code.co_argcount + code.co_kwonlyargcount :]
    if code.co_posonlyargcount:
        positional.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        positional.append(f"*{rest.pop(0)}")
    elif keywords:
        positional.append("*")
    extra = [f"**{rest.pop(0)}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    return ", ".join([*positional, *keywords, *extra])
