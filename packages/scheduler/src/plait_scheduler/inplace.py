"""Letting a kernel, or a call, write its result over an input that nothing needs any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plait_ir_lowering import (
    Buffer,
    ExternCall,
    ExternList,
    Load,
    TensorRef,
    Value,
    loads_of,
    rewrite,
)
from plait_scheduler.domains import plain
from plait_scheduler.kernels import BuiltKernel
from plait_scheduler.program import Access, Statement, Store
from plait_scheduler.statements import domain_of

OVERWRITING = {("aten::index_add", "out"): 0}
"""Calls, by operator and overload, that change an argument where it is the out argument too, with
the argument's position; they copy it into the out argument elsewhere."""


def overwritten_by(call: ExternCall, target: str, buffers: Mapping[str, Buffer]) -> str | None:
    """The buffer in whose memory a call may compute `target`, once nothing else needs it.

    It lies in memory alike, and the call reads it as a whole in that one place.
    """
    position = OVERWRITING.get((call.op, call.overload))
    if position is None or not call.out_variant:
        return None
    given = call.args[position]
    if not isinstance(given, TensorRef) or given.dtype is not None:
        return None
    source, made = buffers[given.buffer], buffers[target]
    if (source.dtype, source.device, source.layout) != (made.dtype, made.device, made.layout):
        return None
    if given.view is not None and given.view != source.layout:
        return None
    others = [arg for place, arg in enumerate(call.args) if place != position]
    reads = any(
        isinstance(arg, ExternList) or (isinstance(arg, TensorRef) and arg.buffer == given.buffer)
        for arg in others
    )
    return None if reads else given.buffer


def overwrite(
    built: BuiltKernel, source: str, target: str, buffers: dict[str, Buffer]
) -> BuiltKernel | None:
    """The kernel with `target` stored in the memory of `source`; None where that is unsafe.

    It is safe if both lie in memory alike, the kernel stores `target` once, and all
    reads of `source` are of the very element that the same point stores, not later
    than the store.
    """
    if source not in built.buffers or target not in built.buffers:
        return None
    if buffers[source].dtype is not buffers[target].dtype:
        return None
    if buffers[source].layout != buffers[target].layout:
        return None
    read = built.kernel.params[built.buffers.index(source)]
    written = built.kernel.params[built.buffers.index(target)]
    if read.access is not Access.READ:
        return None
    statements = built.kernel.statements
    stores = [n for n, s in enumerate(statements) if _stores(s, written.name)]
    if len(stores) != 1:
        return None
    store = statements[stores[0]]
    assert isinstance(store, Store)
    for number, statement in enumerate(statements):
        loads = [load for load in loads_of([statement.value]) if load.buffer == read.name]
        if not loads:
            continue
        if number > stores[0] or domain_of(statement) is not store.domain:
            return None
        if any(plain(load.index) != store.index for load in loads):
            return None
    return _merged(built, read.name, written.name, target)


def _stores(statement: Statement, param: str) -> bool:
    return isinstance(statement, Store) and statement.param == param


def _merged(built: BuiltKernel, read: str, written: str, target: str) -> BuiltKernel:
    """One parameter in place of two; those behind the dropped one move up."""
    kept = [(p, b) for p, b in zip(built.kernel.params, built.buffers, strict=True)]
    kept = [(p, target if p.name == read else b) for p, b in kept if p.name != written]
    names = {param.name: f"p{number}" for number, (param, _) in enumerate(kept)}
    names[written] = names[read]

    def leaf(value: Value) -> Value | None:
        if isinstance(value, Load):
            return Load(names[value.buffer], value.index, value.dtype)
        return None

    statements: list[Statement] = []
    for statement in built.kernel.statements:
        value = rewrite(statement.value, leaf, lambda expr: expr)
        if isinstance(statement, Store):
            statements.append(replace(statement, param=names[statement.param], value=value))
        else:
            statements.append(replace(statement, value=value))
    params = tuple(
        replace(
            param,
            name=names[param.name],
            access=Access.READ_WRITE if param.name == read else param.access,
        )
        for param, _ in kept
    )
    kernel = replace(built.kernel, params=params, statements=tuple(statements))
    return BuiltKernel(kernel, tuple(buffer for _, buffer in kept), built.symbols)
