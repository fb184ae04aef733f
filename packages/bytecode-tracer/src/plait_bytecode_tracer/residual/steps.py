"""Calls that follow each other, made by nobody who keeps what they are given.

Where a compiled call breaks, Python goes on in other functions: first the instruction that
breaks, then the continuation. Each gets its values as a caller in Python hands them over,
and they are its alone: an object lives no longer than in the program as it is written, and
a loop with a break needs no deeper stack in each iteration.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

from plait_bytecode_tracer.tensors.ambient import Before, has_failed

_HIDDEN = "<plait: as importlib._bootstrap>"
"""A file of code between two functions of the user's, where Python has none.

Warnings look for the user's frame past frames of importlib, by the file's name.
"""


class Step:
    """The call that goes on, for the caller of what returns this to make."""

    __slots__ = ("before", "function", "then", "values")

    def __init__(
        self,
        function: Any,
        values: list[Any],
        then: Callable[[Any], Any] | None = None,
        before: Before | None = None,
    ) -> None:
        self.function = function
        """A plain function, or a compiled one."""
        self.values = values
        self.then = then
        """Takes what the function returns, and tells what is next, or the result."""
        self.before = before
        """The modes as they were before what has come so far switched them."""


def run_steps(result: Any) -> Any:
    """Make the calls that a result stands for; the result of the last.

    Where one of their graphs fails, the modes are again as they were before all of them.
    """
    switched: list[Before] = []
    try:
        while result.__class__ is Step:
            function, values, then = result.function, result.values, result.then
            if result.before is not None and result.before not in switched:
                switched.append(result.before)
            result = None
            if function.__class__ is types.FunctionType:
                result = hand_over(function, values)
            else:
                result = function.proceed(values)
                values.clear()
            if then is not None:
                result = then(result)
    except BaseException as error:
        if has_failed(error):
            for before in reversed(switched):
                before.restore()
        raise
    return result


def hand_over(function: Callable[..., Any], values: list[Any]) -> Any:
    """Call a function with values that nobody else keeps; the list is empty thereafter."""
    values.reverse()
    count = values.__len__()  # the program may have replaced len()
    return _caller(count)(function, values.pop)


@functools.cache
def _caller(count: int) -> Callable[..., Any]:
    """What calls a function with so many values, each of which it takes at that moment.

    They are on no stack but that of the call, which a function in Python takes over.
    """
    text = f"lambda function, take: function({', '.join(['take()'] * count)})"
    made: Callable[..., Any] = eval(compile(text, _HIDDEN, "eval"))
    return made


class Thunk:
    """A call that is given its arguments beforehand, once, and ignores those of its caller."""

    __slots__ = ("function", "values")

    def __init__(self, function: Any, values: Iterable[Any]) -> None:
        self.function = function
        self.values = list(values)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return hand_over(self.function, self.values)


def hide(function: Any) -> None:
    """Show the frames of a function neither in warnings nor in reports."""
    function.__code__ = function.__code__.replace(co_filename=_HIDDEN)


for _function in (run_steps, hand_over, Thunk.__call__):
    hide(_function)
