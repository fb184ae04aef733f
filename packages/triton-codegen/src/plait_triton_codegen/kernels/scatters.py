"""Kernels that write at computed places, in Triton: all points at once, combined atomically.

A scatter's inner points, which run in order on a CPU, are points like the others here: values for
one place combine in whichever order programs come to them, and of several that are assigned any
stays. `plait_ir_lowering` lowers so for GPUs what eager combines in any order, too, in types that
have atomic operations.
"""

from __future__ import annotations

from dataclasses import replace

from plait_ir_lowering import Const, DType, Local, Op, ScatterKind, Value, Var, evaluate
from plait_scheduler import Domain, Kernel, Let, Statement, Store
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.space import FlatKernel

_FAR = 32
"""Steps of so many elements and more are alike: each is in a sector of its own."""

_WORDS = (DType.i32, DType.i64)
_ATOMICS: dict[ScatterKind, tuple[str, tuple[DType, ...]]] = {
    ScatterKind.ADD: ("tl.atomic_add", (DType.f32, DType.f64, *_WORDS)),
    ScatterKind.MAX: ("tl.atomic_max", _WORDS),
    ScatterKind.MIN: ("tl.atomic_min", _WORDS),
}


def is_scatter(kernel: Kernel) -> bool:
    """Whether a kernel combines values with what is in memory."""
    return any(isinstance(s, Store) and s.kind is not None for s in kernel.statements)


def in_any_order(kernel: Kernel) -> Kernel:
    """A kernel with all of its points outer ones, those next to each other last that lie so."""
    variables = kernel.outer + kernel.inner
    steps = _steps(kernel, variables)
    outer = tuple(sorted(variables, key=lambda var: -steps[var]))
    statements = tuple(_outer(statement) for statement in kernel.statements)
    return replace(kernel, outer=outer, inner=(), statements=statements)


def _outer(statement: Statement) -> Statement:
    if isinstance(statement, Let | Store):
        return replace(statement, domain=Domain.OUTER)
    raise UnsupportedKernelError("what writes at computed places and reduces has no Triton form")


def _steps(kernel: Kernel, variables: tuple[Var, ...]) -> dict[Var, int]:
    """For each variable how many bytes apart what neighbours read and write lies, in all.

    What goes to a computed place goes far, unless it is moved by the variable itself.
    """
    zeros = {**dict.fromkeys((v.name for v in variables), 0), **dict.fromkeys(kernel.symbols, 64)}
    found = dict.fromkeys(variables, 0)
    for access in FlatKernel(kernel, Var("", 1), None, False).accesses():
        start = evaluate(access.offset, zeros)
        for var in variables:
            step = abs(evaluate(access.offset, {**zeros, var.name: 1}) - start)
            step = step or _FAR * access.is_store
            found[var] += access.param.dtype.itemsize * (1 + access.is_store) * min(step, _FAR)
    return found


def combining_line(store: Store, pointer: str, value: str, mask: str | None) -> str:
    """The line that combines a block of values with what is at `pointer`.

    Raises UnsupportedKernelError for kinds and types that have no atomic operation.
    """
    guard = f", {mask}" if mask else ""
    if store.kind is None or store.kind is ScatterKind.ASSIGN:
        return f"tl.store({pointer}, {value}{guard})"
    dtype = store.value.dtype
    function, dtypes = _ATOMICS.get(store.kind, ("", ()))
    if dtype not in dtypes:
        raise UnsupportedKernelError(f"there is no atomic {store.kind.value} of {dtype}")
    return f'{function}({pointer}, {value}{guard}, sem="relaxed")'


def combined_where(store: Store) -> tuple[Value, Value | None]:
    """What is combined, and at which points, None for all: those that add 0 to an integer need
    not, and would wait for each other."""
    match store.value:
        case Op("where", (condition, value, Const(0))) if store.kind is ScatterKind.ADD:
            if value.dtype.is_integer:
                return value, condition
    return store.value, None


def computed_axes(store: Store) -> list[tuple[int, Local]]:
    """The dimensions whose coordinates are computed, with the names of these."""
    return [(axis, at) for axis, at in enumerate(store.index) if isinstance(at, Local)]
