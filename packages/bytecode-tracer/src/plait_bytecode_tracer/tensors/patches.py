"""What programs may replace in torch itself: methods of tensors, Python functions and their code.

A trace assumes that torch is as it was. That costs next to nothing to check: a class or a
module's dict that has not changed since the last call is told by its version. What
somebody has replaced before the trace is followed where it is Python, and breaks else.
"""

from __future__ import annotations

import dis
import functools
import operator
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import class_attribute
from plait_bytecode_tracer.outside.assumptions import guard_class_attribute, guard_function
from plait_bytecode_tracer.values.sources import Source

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift"),
    *("and", "or", "xor"),
)
_COMPARED = {"lt": "gt", "le": "ge", "eq": "eq", "ne": "ne", "gt": "lt", "ge": "le"}
_METHODS: dict[Any, tuple[str, ...]] = {
    operator.getitem: ("__getitem__",),
    operator.setitem: ("__setitem__",),
    operator.neg: ("__neg__",),
    operator.pos: ("__pos__",),
    operator.invert: ("__invert__",),
    operator.inv: ("__invert__",),
    operator.abs: ("__abs__",),
    **{
        getattr(operator, name if hasattr(operator, name) else f"{name}_"): (
            *(f"__{name}__", f"__r{name}__"),
        )
        for name in _BINARY
    },
    **{
        getattr(operator, f"i{name}"): (f"__i{name}__", f"__{name}__", f"__r{name}__")
        for name in _BINARY
    },
    **{
        getattr(operator, name): (f"__{name}__", f"__{other}__")
        for name, other in _COMPARED.items()
    },
}
"""The methods of tensors that an operator may call."""
_OVERRIDES = frozenset(
    {
        *("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"),
        "handle_torch_function",
    }
)
"""What functions of torch ask first; nobody replaces it for one function."""


def is_own(found: object) -> bool:
    """Whether what a class of torch's holds under a name is torch's own, or nothing."""
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, types.FunctionType):
        return str(found.__globals__.get("__name__", "")).partition(".")[0] == "torch"
    return True


def require_own(state: TraceState, name: str, cls: type = torch.Tensor) -> None:
    """Guard that a method of tensors is torch's own. Raises TraceBreakError where it is not."""
    if (id(cls), name) in state.class_guards:
        return
    if not is_own(class_attribute(cls, name)):
        raise TraceBreakError("GB0002", f"{cls.__name__}.{name}, which is not torch's own")
    guard_class_attribute(state, cls, name)


def refuse_modes(state: TraceState, what: str) -> None:
    """Break where a torch function mode would see what the trace does at once."""
    if state.ambient.intercepts:
        raise TraceBreakError("GB0002", f"{what} inside a torch function mode")


def require_own_operation(state: TraceState, kind: str, target: Any, cls: type) -> None:
    """The same for what a node of the graph calls; `cls` is that of its first tensor."""
    names = (target,) if kind == "call_method" else _METHODS.get(_hashable(target), ())
    for name in names:
        require_own(state, name)
        if cls is not torch.Tensor:
            require_own(state, name, cls)


def _hashable(target: Any) -> Any:
    return target if isinstance(target, types.BuiltinFunctionType) else None


def guard_code(state: TraceState, function: types.FunctionType) -> None:
    """A Python function of torch's that a node calls keeps its code, and what that names."""
    if function in state.code_guards:
        return
    state.code_guards.add(function)
    guard_function(state, function)
    namespace = function.__globals__
    source = state.constants.source(namespace, "globals")
    for name, attributes in _names_read(function.__code__):
        if name not in namespace or name in _OVERRIDES:
            continue
        value = namespace[name]
        found = source.named(name)
        state.guard_identity(found, value)
        if isinstance(value, types.FunctionType) and value.__globals__ is namespace:
            guard_code(state, value)
        if isinstance(value, types.ModuleType):
            _guard_members(state, value, attributes, found)


def _guard_members(
    state: TraceState, module: types.ModuleType, names: frozenset[str], source: Source
) -> None:
    """What code reads of a module stays as it is."""
    table = state.constants.source(module.__dict__, source.text)
    for name in sorted(names):
        if type(module) is not types.ModuleType:  # torch._VF finds functions elsewhere
            state.guard_identity(source.attribute(name), getattr(module, name))
        elif name in module.__dict__:
            state.guard_identity(table.named(name), module.__dict__[name])


@functools.lru_cache(maxsize=1024)
def _names_read(code: types.CodeType) -> tuple[tuple[str, frozenset[str]], ...]:
    """The globals that code reads, each with the attributes that it reads of it."""
    found: dict[str, set[str]] = {}
    for one in _codes(code):
        last: str | None = None
        for instruction in dis.get_instructions(one):
            if instruction.opname == "LOAD_GLOBAL":
                last = str(instruction.argval)
                found.setdefault(last, set())
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and last is not None:
                found[last].add(str(instruction.argval))
                last = None
            elif instruction.opname not in ("CACHE", "PRECALL"):
                last = None
    return tuple((name, frozenset(attributes)) for name, attributes in found.items())


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)
