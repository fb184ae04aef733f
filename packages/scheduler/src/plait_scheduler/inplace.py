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
from plait_scheduler.program import Access, Kernel, Statement, Store
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


def overwrite(kernel: Kernel, source: int, target: int) -> tuple[Kernel, tuple[int, ...]] | None:
    """The kernel with one parameter, `target`, stored in the memory of another, `source`.

    With it come the places of its parameters' buffers among those of `kernel`. None where that is
    unsafe. It is safe if both lie in memory alike, the kernel stores `target` once, and all reads
    of `source` are of the very element that the same point stores, not later than the store.
    """
    read, written = kernel.params[source], kernel.params[target]
    if read.dtype is not written.dtype or read.layout != written.layout:
        return None
    if read.access is not Access.READ:
        return None
    statements = kernel.statements
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
    places = range(len(kernel.params))
    kept = tuple(target if place == source else place for place in places if place != target)
    return _merged(kernel, read.name, written.name), kept


def _stores(statement: Statement, param: str) -> bool:
    return isinstance(statement, Store) and statement.param == param


def _merged(kernel: Kernel, read: str, written: str) -> Kernel:
    """One parameter in place of two; those behind the dropped one move up."""
    kept = [param for param in kernel.params if param.name != written]
    names = {param.name: f"p{number}" for number, param in enumerate(kept)}
    names[written] = names[read]

    def leaf(value: Value) -> Value | None:
        if isinstance(value, Load):
            return Load(names[value.buffer], value.index, value.dtype)
        return None

    statements: list[Statement] = []
    for statement in kernel.statements:
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
        for param in kept
    )
    return replace(kernel, params=params, statements=tuple(statements))
