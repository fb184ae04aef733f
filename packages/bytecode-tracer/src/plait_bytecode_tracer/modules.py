"""Compiled modules: the module itself, but for its call."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

import torch

from plait_bytecode_tracer.dispatch import CompiledFunction
from plait_bytecode_tracer.guards.native import NATIVE
from plait_bytecode_tracer.object_calls import ObjectCall

Compile = Callable[[types.FunctionType], CompiledFunction]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def compile_module(module: torch.nn.Module, compile_function: Compile) -> torch.nn.Module:
    """`module` with a compiled `forward`.

    The result is of a subclass of the module's class and shares everything with it:
    parameters, buffers, `state_dict` keys, training mode, attributes. It pickles and
    copies as the module does; the copy compiles anew.
    """
    kind: Hashable = type(module)  # type: ignore[assignment]  # torch's __hash__ is untyped
    cls = _compiled_class(kind)
    made: torch.nn.Module = object.__new__(cls)  # as it is: its own may make another class
    object.__setattr__(made, "__dict__", module.__dict__)
    forward = type(module).forward
    if not isinstance(forward, types.FunctionType):
        raise TypeError(f"{type(module).__name__}.forward is not a Python function")
    object.__setattr__(made, "_plait_original", module)
    object.__setattr__(made, "_plait_compile", compile_function)
    _compile_forward(made, forward)
    return made


def _compile_forward(made: Any, forward: types.FunctionType) -> CompiledFunction:
    compiled: CompiledFunction = made._plait_compile(forward)
    object.__setattr__(made, "_plait_forward", forward)
    object.__setattr__(made, "_plait_compiled", compiled)
    return compiled


@functools.cache
def _compiled_class(cls: Hashable) -> Any:
    namespace: dict[str, Any] = {
        "__slots__": ("_plait_compile", "_plait_compiled", "_plait_forward", "_plait_original"),
        "forward": _forward,
        "__reduce_ex__": _reduce,
        "__copy__": _copy,
        "__deepcopy__": _deepcopy,
    }
    if not isinstance(cls, type):
        raise TypeError(f"{cls!r} is not a class")
    if cls.__call__ is torch.nn.Module.__call__:  # else its own call comes to forward
        namespace["__call__"] = _call
    made = type(f"Compiled{cls.__name__}", (cls,), {**namespace, "__module__": cls.__module__})
    if "__call__" in namespace and NATIVE.request(lambda: _call_natively(made), builds=False):
        _call_natively(made)
    return made


def _call_natively(cls: type) -> None:
    """Let calls of compiled modules try native guards first; these cover hooks too."""
    if NATIVE.module is not None:
        own = vars(cls)
        forwards = vars(CompiledFunction)["_native_forwards"]
        caller = NATIVE.module.caller(
            _call, forwards, own["_plait_compiled"], own["_plait_original"]
        )
        setattr(cls, "__call__", caller)  # noqa: B010  # for mypy
        NATIVE.module.call_quickly(cls)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    attributes = self.__dict__
    hooked = torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    if "forward" in attributes or _is_uninitialized(self._plait_original):
        return torch.nn.Module.__call__(self._plait_original, *args, **kwargs)
    if hooked or any(attributes[name] for name in _HOOKS):
        return torch.nn.Module.__call__(self, *args, **kwargs)
    return _forward(self, *args, **kwargs)


def _is_uninitialized(module: torch.nn.Module) -> bool:
    """Whether a lazy module waits for its first input, which also changes its class."""
    lazy = torch.nn.modules.lazy.LazyModuleMixin
    return isinstance(module, lazy) and module.has_uninitialized_params()


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    original, compiled = self._plait_original, self._plait_compiled
    forward = type(original).forward
    if self._plait_forward is not forward:  # the class was changed, or another one assigned
        compiled = _compile_forward(self, forward)
    return compiled(original, *args, **kwargs)


def _reduce(self: Any, protocol: int) -> Any:
    """A compiled module pickles as the module that it compiles."""
    return _itself, (self._plait_original,)


def _itself(module: torch.nn.Module) -> torch.nn.Module:
    return module


def _copy(self: Any) -> Any:
    return compile_module(copy.copy(self._plait_original), self._plait_compile)


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    return compile_module(copy.deepcopy(self._plait_original, memo), self._plait_compile)


def compiled_function_of(compiled: object) -> CompiledFunction | None:
    """The compiled function behind a compiled function, method or module, if it is one."""
    if isinstance(compiled, CompiledFunction):
        return compiled
    if isinstance(compiled, types.MethodType):
        return compiled_function_of(compiled.__func__)
    if isinstance(compiled, ObjectCall):
        latest: CompiledFunction = compiled.compiled
        return latest
    found = getattr(type(compiled), "_plait_compiled", None)
    if found is not None and isinstance(compiled, torch.nn.Module):
        inner: CompiledFunction = found.__get__(compiled)
        return inner
    return None
