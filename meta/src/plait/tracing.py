"""How each kind of callable is handed to the tracer."""

from __future__ import annotations

import inspect
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plait.backends import GraphCompiler

if TYPE_CHECKING:
    from plait_bytecode_tracer import CompiledFunction

_live: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()
_lock = threading.Lock()


def compile_callable(function: Callable[..., Any], compiler: GraphCompiler) -> Callable[..., Any]:
    """`function` such that its calls are traced and compiled by `compiler`.

    A module gives a module, a bound method a bound method, all else a function object.
    """
    import torch

    def compile_function(plain: types.FunctionType) -> CompiledFunction:
        from plait_bytecode_tracer import CompiledFunction

        compiled = CompiledFunction(
            plain,
            compiler,
            fullgraph=compiler.fullgraph,
            recompile_limit=compiler.options.recompile_limit,
        )
        with _lock:
            _live.add(compiled)
        return compiled

    if isinstance(function, torch.nn.Module):
        from plait_bytecode_tracer import compile_module

        return compile_module(function, compile_function)
    if isinstance(function, types.FunctionType):
        return compile_function(function)
    if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
        return types.MethodType(compile_function(function.__func__), function.__self__)
    call = inspect.getattr_static(type(function), "__call__", None)
    if isinstance(call, types.FunctionType) and not isinstance(function, type):
        return types.MethodType(compile_function(call), function)
    return compile_function(_calling(function))


def _calling(function: Callable[..., Any]) -> types.FunctionType:
    """A plain function that calls a built-in one, a class or a partial."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = str(getattr(function, "__name__", type(function).__name__))
    return call


def forget_all() -> None:
    """Drop the specialisations of everything that was compiled and still lives."""
    with _lock:
        functions = list(_live)
    for function in functions:
        function.reset()
        if isinstance(function.backend, GraphCompiler):
            function.backend.session.clear()
