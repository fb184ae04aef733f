"""Letting a kernel write its result over an input that nothing needs any more."""

from __future__ import annotations

from dataclasses import replace

from plait_ir_lowering import Buffer, Load, Value, loads_of, rewrite
from plait_scheduler.domains import plain
from plait_scheduler.kernels import BuiltKernel
from plait_scheduler.program import Access, Statement, Store
from plait_scheduler.statements import domain_of


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
