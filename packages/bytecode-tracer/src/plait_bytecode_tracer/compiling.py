"""Compiling an object: the compiled one is of the same kind."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch

from plait_bytecode_tracer.dispatch import CompiledFunction
from plait_bytecode_tracer.errors import UncompilableError
from plait_bytecode_tracer.modules import compile_module, compiled_function_of
from plait_bytecode_tracer.object_calls import ObjectCall, is_compilable
from plait_bytecode_tracer.values.lookup import is_compiled_by_torch
from plait_utils import shown

CompileFunction: TypeAlias = Callable[[types.FunctionType, str], CompiledFunction]
"""Compiles a plain function; the text is its name in reports."""


def compile(  # the field's name for it
    model: Any,
    backend: Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]],
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    recompile_limit: int = 8,
    orders_draws: bool = False,
) -> Any:
    """Capture the graphs of a function, method or module, and let a backend compile them.

    Args:
        model: what to compile; it happens at the first call.
        backend: takes a torch-level `torch.fx.GraphModule` and its example inputs, which are
            fake tensors, and returns what runs it: the convention of torch.compile's
            backends. What it returns takes the graph's inputs, parameters among them, and
            gives a tuple or list of outputs.
        fullgraph: raise FullGraphError at a graph break.
        dynamic: as `CompiledFunction` has it.
        recompile_limit: specialisations of one function, or after a graph break for one module;
            further calls run eagerly.
        orders_draws: as `CompiledFunction` has it.

    Returns:
        The same kind of object, with the same behaviour: values, exceptions, side effects.

    Raises:
        UncompilableError: for what cannot be called as it is, such as a class.
    """

    def run_backend(module: torch.fx.GraphModule, inputs: Any, capture: object) -> Any:
        return backend(module, inputs)

    def compile_function(function: types.FunctionType, name: str) -> CompiledFunction:
        return CompiledFunction(
            function,
            run_backend,
            fullgraph=fullgraph,
            dynamic=dynamic,
            recompile_limit=recompile_limit,
            orders_draws=orders_draws,
        )

    return compile_object(model, compile_function)


def compile_object(model: Any, compile_function: CompileFunction) -> Any:
    """`model` compiled: a function, method, module, descriptor or callable object of its kind.

    What is compiled already is compiled anew from what it was made of, so the outermost
    arguments count. Raises UncompilableError for what cannot be called as it is.
    """
    if isinstance(model, CompiledFunction):
        return compile_function(model.function, model.__name__)
    if isinstance(model, types.FunctionType):
        goes_through = is_compiled_by_torch(model)
        return compile_function(_calling(model) if goes_through else model, model.__name__)
    if isinstance(model, torch.nn.Module):
        return _module(model, compile_function)
    if isinstance(model, types.MethodType):
        if isinstance(model.__func__, ObjectCall):
            return compile_object(model.__self__, compile_function)
        return types.MethodType(compile_object(model.__func__, compile_function), model.__self__)
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(compile_object(model.__func__, compile_function))
    _refuse_what_is_not_called(model)
    call = inspect.getattr_static(type(model), "__call__", None)
    if is_compilable(call):
        made = ObjectCall(call, lambda method: compile_object(method, compile_function))
        return types.MethodType(made, model)
    return compile_function(_calling(model), _name_of(model))


def _refuse_what_is_not_called(model: object) -> None:
    if isinstance(model, type):
        raise UncompilableError(
            f"compile takes what computes, not the class {model.__name__}",
            hint=f"Compile an instance, compile({model.__name__}(...)), or decorate the "
            "method that computes.",
        )
    if isinstance(model, (property, functools.cached_property)):
        raise UncompilableError(
            "compile takes a function, not a property",
            hint="Put @property above the decorator that compiles.",
        )
    if not callable(model):
        raise UncompilableError(
            f"compile takes a function, a method or an nn.Module, not {shown(model)}",
            hint="Pass what is to be called, or use it as a decorator.",
        )


def _module(model: torch.nn.Module, compile_function: CompileFunction) -> torch.nn.Module:
    name = type(model).__name__
    if compiled_function_of(model) is not None:
        return _module(_original(model), compile_function)
    if isinstance(model, torch.jit.ScriptModule):
        raise UncompilableError(
            f"compile takes Python modules, and {name} is one of TorchScript",
            hint="Compile the module that it was made from.",
        )
    forward = inspect.getattr_static(type(model), "forward", None)
    is_own = "forward" not in vars(model)
    if isinstance(forward, types.FunctionType) and is_own and not is_compiled_by_torch(forward):
        return compile_module(model, lambda function: compile_function(function, name))
    if not isinstance(type(model).forward, types.FunctionType):
        raise UncompilableError(
            f"{name}.forward is a {type(type(model).forward).__name__}, not a Python function",
            hint="Compile a function that calls the module.",
        )
    call_forward = cast(types.FunctionType, _call_forward)
    return compile_module(model, lambda function: compile_function(call_forward, name))


def _original(compiled: torch.nn.Module) -> torch.nn.Module:
    """The module that a compiled one was made of: it pickles as that one."""
    reduced = compiled.__reduce_ex__(4)
    assert isinstance(reduced, tuple)
    original: torch.nn.Module = reduced[1][0]
    return original


def _call_forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a module whose own is not a method of its class: found at each call."""
    return self.forward(*args, **kwargs)


def _calling(function: Callable[..., Any]) -> types.FunctionType:
    """A plain function that calls a built-in one or a partial."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    assert isinstance(call, types.FunctionType)
    call.__name__ = call.__qualname__ = _name_of(function)
    return call


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = inspect.getattr_static(function, "__name__", None)
    return name if isinstance(name, str) else str(getattr(function, "__name__", None) or "call")
