"""Values from outside as variables, guarded so that later calls find the same."""

from __future__ import annotations

import collections
import enum
import types
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.outside.assumptions import guard_named_tuple, guard_same
from plait_bytecode_tracer.outside.classes import class_source, is_class_of_call, wrap_class
from plait_bytecode_tracer.outside.containers import guard_view, wrap_container, wrap_deque
from plait_bytecode_tracer.outside.enums import wrap_member
from plait_bytecode_tracer.outside.functions import is_made_for_calls, wrap_function
from plait_bytecode_tracer.outside.tensors import wrap_tensor
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.twins.registry import proxy_of, shown_by
from plait_bytecode_tracer.values.constants import (
    UNCHANGING,
    VIEWS,
    acts_by_identity,
    is_constant,
)
from plait_bytecode_tracer.values.lookup import has_plain_names, is_a
from plait_bytecode_tracer.values.numpy_objects import is_array, is_numpy_float
from plait_bytecode_tracer.values.plain import STORED_KINDS, is_named_tuple
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    BoundVariable,
    CellVariable,
    FunctionVariable,
    Known,
    MethodVariable,
    Variable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


def wrap(state: TraceState, value: Any, source: Source | None) -> Variable:
    """A value from outside, guarded so that later calls find the same."""
    if source is None:
        return state.made.given(value)
    if is_a(value, torch.Tensor):
        return wrap_tensor(state, value, source)
    if type(value) in (int, float):
        mark = state.policy.number(source, value)
        if mark is not None:
            return state.need_symbols().number(value, source, mark)
    if type(value) in (str, bytes) and state.goes_on and state.policy.text_changes(source, value):
        return state.need_symbols().number(value, source, Mark(True))
    if state.goes_on and is_a(value, enum.Enum):
        owner = class_source(source)
        if is_class_of_call(type(value), owner):
            return wrap_member(state, value, source, owner)
    changes = is_numpy_float(value) and state.policy.has_changed(source, float(value))
    if is_constant(value) and type(value) is not tuple and not changes:
        state.guard_constant(value, source)
        return Known(value, source)
    known = state.world.wrapped.get(id(value))
    if known is not None:
        _guard_alias(state, known, value, source)
        return known
    if state.made.depends(value) and not state.made.is_adopted(value):
        return state.made.given(value)
    variable = _wrap_object(state, value, source)
    state.world.wrapped[id(value)] = variable
    state.world.kept.append(value)
    return variable


def _guard_alias(state: TraceState, known: Variable, value: object, source: Source) -> None:
    first = getattr(known, "source", None)
    if isinstance(known, CellVariable) and first is not None:
        first = first.base
    if first is not None and first.code != source.code:
        by_parts = isinstance(known, FunctionVariable) or state.made.is_adopted(value)
        if is_a(value, types.FunctionType | type | types.ModuleType) and not by_parts:
            state.guard_identity(source, value)
        else:
            guard_same(state, source, first)


def _wrap_object(state: TraceState, value: Any, source: Source) -> Variable:
    if is_a(value, types.BuiltinMethodType) and _is_bound_to_data(value):
        state.guard_type(source, value)
        state.guard_constant(value.__name__, source.attribute("__name__"))
        owner = state.wrap(value.__self__, source.attribute("__self__"))
        return MethodVariable(owner, value.__name__)
    if is_a(value, types.MethodWrapperType):
        state.guard_type(source, value)
        state.guard_constant(value.__name__, source.attribute("__name__"))
        state.wrap(value.__self__, source.attribute("__self__"))
        return Known(value, source)
    if is_a(value, types.FunctionType) and is_made_for_calls(value, source):
        return wrap_function(state, value, source)
    if is_a(value, type) and not has_plain_names(value):
        raise TraceBreakError("GB0009", "a class that defines attributes with odd names")
    if is_a(value, type) and state.goes_on and is_class_of_call(value, source):
        return wrap_class(state, value, source)
    if acts_by_identity(value):
        state.guard_identity(source, value)
        return Known(value, source)
    if is_a(value, types.CellType):
        state.guard_type(source, value)
        return CellVariable(None, value, source.cell_content(source.text))
    if type(value) in STORED_KINDS or is_named_tuple(type(value)):
        if state.goes_on and is_class_of_call(type(value), source):
            state.wrap(type(value), class_source(source))
        else:
            state.guard_type(source, value)
        if is_named_tuple(type(value)):
            guard_named_tuple(state, type(value))
        return wrap_container(state, value, type(value), source)
    if type(value) is collections.deque:
        return wrap_deque(state, value, source)
    if type(value) is types.MappingProxyType:
        state.guard_type(source, value)
        inner = Source(f"{state.constants.name(shown_by)}({source.code})", source.text, source)
        return proxy_of(state.wrap(shown_by(value), inner), source)
    if is_array(value) or is_numpy_float(value):
        state.guard_type(source, value)
        return ArrayVariable(None, not is_array(value), source, value)
    if is_a(value, UNCHANGING):  # methods of these are called while tracing
        state.guard_identity(source, value)
    if is_a(value, VIEWS):
        guard_view(state, value, source)
    if is_a(value, types.MethodType) and is_a(value.__func__, types.FunctionType):
        function = source.attribute("__func__")
        if is_made_for_calls(value.__func__, function):
            state.guard_type(source, value)
            owner = state.wrap(value.__self__, source.attribute("__self__"))
            return BoundVariable(state.wrap(value.__func__, function), owner)
    if is_a(value, types.MethodType):
        if not isinstance(value.__self__, type | types.ModuleType):
            state.guard_type(source, value)  # what it is bound to is read where it is called
            state.guard_identity(source.attribute("__func__"), value.__func__)
            return Known(value, source)
        parts = (value.__func__, value.__self__)
        state.require(source, Kind.METHOD, parts, f"{source.text} is a method")
        return Known(value, source)
    if state.goes_on and is_class_of_call(type(value), source):
        state.wrap(type(value), class_source(source))
    else:
        state.guard_type(source, value)
    return Known(value, source)


def wrap_cell(state: TraceState, cell: types.CellType, name: str) -> CellVariable:
    """A cell of a real function's closure; its content is read on demand."""
    known = state.world.wrapped.get(id(cell))
    if isinstance(known, CellVariable):
        return known
    source = state.constants.source(cell, name).cell_content(name)
    variable = CellVariable(None, cell, source)
    state.world.wrapped[id(cell)] = variable
    state.world.kept.append(cell)
    return variable


def _is_bound_to_data(method: types.BuiltinMethodType) -> bool:
    """Whether a method in C is one of a container, tensor or device, made at each look-up."""
    return type(method.__self__) in (*STORED_KINDS, torch.Tensor, torch.nn.Parameter, torch.device)
