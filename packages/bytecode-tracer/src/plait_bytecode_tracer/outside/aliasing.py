"""Guards against objects that are one in a later call, where what was traced took them for two."""

from __future__ import annotations

import collections
import types
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.graph.changes import is_changed
from plait_bytecode_tracer.guards import Distinct, Kind, StoragePattern, storage_pattern
from plait_bytecode_tracer.outside.tables import may_hold_itself, own_dict_source
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.wrappers import memory_of
from plait_bytecode_tracer.values.constants import is_fixed
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import STORED_KINDS, own_table
from plait_bytecode_tracer.values.sources import Access, Source
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    CellVariable,
    DictVariable,
    Known,
    SequenceVariable,
    SetVariable,
    TensorVariable,
    Variable,
)


def guard_shared_storage(state: TraceState) -> None:
    """With changes of tensors, the same inputs must share storage as when traced."""
    inputs = _memory(state)
    if inputs:
        pattern = storage_pattern(tuple(real for _, real, _ in inputs))
        expected = StoragePattern(tuple(source for source, _, _ in inputs), pattern)
        state.require(None, Kind.STORAGE_PATTERN, expected, "which inputs share storage")


def _memory(state: TraceState) -> list[tuple[Source, torch.Tensor, fx.Node]]:
    """The tensors with memory among the inputs, how to read them, and nodes of the inputs."""
    if not state.class_codes:
        return [(each.source, each.real, each.node) for each in state.tensor_inputs]
    return [
        (source, real, each.node)
        for each in state.tensor_inputs
        for source, real in memory_of(each.real, each.source)
    ]


def apart(*tensors: torch.Tensor) -> bool:
    """Whether tensors of different storages have no memory in common, as arrays can have it."""
    spans = [(_storage(tensor), *_span(tensor)) for tensor in tensors if tensor.numel()]
    spans.sort(key=lambda span: span[1])
    furthest, owner = 0, 0
    for storage, begin, end in spans:
        if begin < furthest and storage != owner:
            return False
        if end > furthest:
            furthest, owner = end, storage
    return True


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's storage begins and ends in memory, in bytes."""
    storage = tensor.untyped_storage()
    begin = storage.data_ptr()
    return begin, begin + storage.nbytes()


def guard_memory(state: TraceState) -> None:
    """With in-place operations, no array lies over the memory of another input.

    Breaks the whole call where one does now: the graph takes them for different tensors.
    """
    arrays = [v for v in state.world.wrapped.values() if isinstance(v, ArrayVariable) and v.tensor]
    inputs = _memory(state)
    if not state.mutates_tensors or not arrays or len(inputs) < 2:
        return
    if not apart(*(real for _, real, _ in inputs)):
        raise TraceBreakError("GB0016", "a write where arrays share memory")
    check = state.constants.name(apart)
    sources = ", ".join(source.code for source, _, _ in inputs)
    state.guard(None, f"{check}({sources})", "arrays share no memory with other inputs")


def refuse_shared(named: Sequence[Variable]) -> None:
    """Break where an array that the trace made leaves it beside a tensor over its memory.

    One that leaves gets memory of its own, as NumPy's arrays have it; `named` are all values
    that leave.
    """
    made = [v for v in named if isinstance(v, ArrayVariable) and v.is_shared and not v.again]
    shared = {_storage(v.tensor.fake) for v in made if v.tensor and v.source is None}
    if not shared:
        return
    inner = {id(v.tensor) for v in made}
    for value in named:
        if not isinstance(value, TensorVariable) or id(value) in inner:
            continue
        if _storage(value.fake) in shared:
            raise TraceBreakError("GB0016", "an array that leaves beside a tensor of its memory")


def changes_shared_history(state: TraceState) -> bool:
    """Whether a tensor is changed that shares memory with another input, and gradients flow there,
    or one is set to need gradients or not.

    Then both get another history and may come to require gradients, which fake tensors that
    share nothing do not show.
    """
    required = state.derivatives.required
    inputs = _memory(state)
    pattern = storage_pattern(tuple(real for _, real, _ in inputs))
    groups = collections.Counter(first for first, _ in pattern)
    shared = [node for (_, _, node), (first, _) in zip(inputs, pattern, strict=True)
              if groups[first] > 1]  # fmt: skip
    if any(node in required for node in shared):
        return True
    if not any(is_changed(state, node) for node in shared):
        return False
    return any(node.meta["val"].requires_grad for node in shared)


def guard_distinct(state: TraceState) -> None:
    """What the trace wrote to is no other object that it read."""
    changed = [*state.world.changed.values(), *state.world.owners.values()]
    if not changed:
        return
    by_source = {getattr(v, "source", None): v for v in state.world.wrapped.values()}
    written = {_kind(_holder(v, by_source)) for v in changed} - {None}
    found: dict[Hashable, dict[str, Source]] = collections.defaultdict(dict)
    for variable in (*state.world.wrapped.values(), *state.world.storages.values()):
        kind, source = _kind(variable), getattr(variable, "source", None)
        if isinstance(variable, CellVariable) and source is not None:
            source = source.base
        if kind in written and source is not None:
            found[kind].setdefault(source.code, source)
    _guard_own_tables(state, changed, by_source)
    for sources in found.values():
        if len(sources) > 1 and not all(s.access is Access.CONSTANT for s in sources.values()):
            shown = ", ".join(source.text for source in sources.values())
            expected = Distinct(tuple(sources.values()))
            state.require(None, Kind.DISTINCT, expected, f"{shown} are different objects")


def _guard_own_tables(
    state: TraceState, changed: Sequence[Variable], by_source: dict[Source | None, Variable]
) -> None:
    """Dicts that have changed keep their attributes elsewhere, where those were not entries."""
    for variable in changed:
        held = _holder(variable, by_source)
        source = getattr(held, "source", None)
        real = held.value if isinstance(held, Known) else getattr(held, "original", None)
        if source is None or type(real) in STORED_KINDS or not may_hold_itself(real):
            continue
        if own_table(real) is not real:
            text = f"{source.text} does not hold its own attributes"
            expected = Distinct((source, own_dict_source(state, real, source)))
            state.require(None, Kind.DISTINCT, expected, text)


def _holder(variable: Variable, by_source: dict[Source | None, Variable]) -> Variable:
    """The object whose attributes a dict holds; of other dicts and objects they themselves."""
    source = getattr(variable, "source", None)
    if source is not None and source.access is Access.INSTANCE_DICT:
        return by_source.get(source.base, variable)
    return variable


def _kind(variable: Variable) -> Any:
    """The class of an object of the caller's that can change; None for others."""
    match variable:
        case TensorVariable(source=source) if source is not None:
            return TensorVariable
        case DictVariable(source=source) if source is not None:
            return None if source.access is Access.INSTANCE_DICT else variable.kind
        case SequenceVariable(source=source) if source is not None:
            return variable.kind if variable.kind is list else None
        case SetVariable(source=source) if source is not None:
            return variable.kind
        case CellVariable(source=source) if source is not None and source.base is not None:
            return CellVariable
        case Known(value, source) if source is not None and not _is_compared(value):
            cls: Any = type(value)
            return cls
    return None


def _is_compared(value: object) -> bool:
    """Whether a guard says which object it is, or what it equals."""
    definitions = type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType
    return is_fixed(value) or is_a(value, definitions)
