"""Tensors of the graph that are computed with as torch's own are.

The functions of NumPy are written once, as Python over tensors: with these they make nodes
of the graph, with real tensors they are tested against NumPy.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.values.variables import SequenceVariable, TensorVariable, Variable

_READ = ("dtype", "ndim", "is_complex", "is_floating_point", "dim")


class Traced:
    """A tensor of the graph; its operators and methods add to the graph."""

    __slots__ = ("frame", "variable")

    def __init__(self, frame: Frame, variable: TensorVariable) -> None:
        self.frame = frame
        self.variable = variable

    def __getattr__(self, name: str) -> Any:
        if name in _READ:
            return getattr(self.variable.fake, name)
        return lambda *args, **kwargs: _emit(self.frame, "call_method", name, (self, *args), kwargs)


def _operator(function: Callable[..., Any], *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Traced, *args: Any) -> Any:
        operands = (*args, self) if swapped else (self, *args)
        return _emit(self.frame, "call_function", function, operands, {})

    return method


for _name in ("add", "sub", "mul", "truediv", "and", "or", "xor", "lshift", "rshift", "matmul"):
    _found = getattr(operator, _name, None) or getattr(operator, f"{_name}_")
    setattr(Traced, f"__{_name}__", _operator(_found))
    setattr(Traced, f"__r{_name}__", _operator(_found, swapped=True))
for _name in ("lt", "le", "eq", "ne", "gt", "ge", "neg", "invert", "getitem"):
    setattr(Traced, f"__{_name}__", _operator(getattr(operator, _name)))


class Torch:
    """The functions of torch, or of a part of it, as they make nodes of the graph."""

    def __init__(self, frame: Frame, module: Any = torch) -> None:
        self._frame = frame
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, types.ModuleType):
            return Torch(self._frame, found)
        if not callable(found) or isinstance(found, torch.dtype):
            return found
        return lambda *args, **kwargs: _emit(self._frame, "call_function", found, args, kwargs)


def _emit(
    frame: Frame, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given, named = _variables(args), {name: _variables(value) for name, value in kwargs.items()}
    node, result = frame.state.emit(kind, target, given, named)
    for arg in args:
        if isinstance(arg, Traced) and arg.variable.fake is result:
            if node is not arg.variable.node and not node.users and not _changes(target):
                node.graph.erase_node(node)
            return arg
    return _traced(frame, frame.state.tensor_result(node, result))


def _changes(target: Any) -> bool:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def _variables(value: Any) -> Any:
    if isinstance(value, Traced):
        return value.variable
    if isinstance(value, list | tuple):
        return type(value)([_variables(item) for item in value])
    return value


def _traced(frame: Frame, value: Variable) -> Any:
    if isinstance(value, TensorVariable):
        return Traced(frame, value)
    if isinstance(value, SequenceVariable):
        return tuple(_traced(frame, item) for item in value.items)
    return value
