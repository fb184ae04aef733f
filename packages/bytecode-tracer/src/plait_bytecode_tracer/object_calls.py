"""Compiled calls of callable objects, which their class decides anew at each call."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.dispatch import CompiledFunction
from plait_bytecode_tracer.guards.exact import class_attribute

Compile = Callable[[Any], CompiledFunction]


class ObjectCall:
    """The compiled `__call__` of an object's class; the object is the first argument.

    The class may get another `__call__`, and the object another class: as Python does, each call
    looks for the method. Attributes are those of the compiled method.
    """

    def __init__(self, method: Any, compile_method: Compile) -> None:
        self._compile = compile_method
        self.__doc__ = method.__doc__
        self._latest: tuple[Any, CompiledFunction] = (method, compile_method(method))

    @property
    def compiled(self) -> CompiledFunction:
        """What was compiled last."""
        return self._latest[1]

    @property
    def plait_traced_function(self) -> types.FunctionType:
        """What a trace of a caller goes through instead of a call of this."""
        assert isinstance(_call, types.FunctionType)
        return _call

    def __getattr__(self, name: str) -> Any:
        if name in ("_latest", "_compile"):  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._latest[1], name)

    def __call__(self, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        method, compiled = self._latest
        present = class_attribute(type(owner), "__call__")
        if present is not method:
            if not is_compilable(present):
                return owner(*args, **kwargs)
            compiled = self._compile(present)
            self._latest = (present, compiled)
        return compiled(owner, *args, **kwargs)


def is_compilable(method: Any) -> bool:
    """Whether what a class has as `__call__` is a function that takes the object."""
    return isinstance(method, (types.FunctionType, CompiledFunction))


def _call(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
    return owner(*args, **kwargs)
