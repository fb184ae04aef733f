"""Whether buffers lie in memory of their own, and what sizes and results may be made of."""

from __future__ import annotations

from collections.abc import Iterator

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Buffer, Graph, Layout, OutputRef, TensorRef
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Sym
from plait_ir_lowering.ir.index_queries import atoms
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import Const, Value, post_order

_LOGICAL = (ReductionKind.ANY, ReductionKind.ALL)


def known_sizes(graph: Graph) -> frozenset[Sym]:
    """The symbolic sizes that the inputs give."""
    exprs = (expr for buffer in graph.inputs for expr in _exprs(buffer.layout))
    return frozenset(atom for expr in exprs for atom in atoms(expr) if isinstance(atom, Sym))


def layout_problem(buffer: Buffer, sizes: frozenset[Sym], *, given: bool) -> str | None:
    """What is wrong with where a buffer lies; inputs, which are `given`, may overlap themselves."""
    layout = buffer.layout
    for size in layout.size:
        if size.is_constant and size.as_int() < 0:
            return f"{buffer.name} has the size {size}"
    for expr in _exprs(layout):
        problem = size_problem(expr, sizes)
        if problem is not None:
            return f"the layout of {buffer.name}: {problem}"
    if given:
        return None
    if layout.offset is not ZERO:
        return f"{buffer.name} does not begin where its memory does"
    return f"elements of {buffer.name} share memory" if _overlaps(layout) else None


def size_problem(expr: IndexExpr, sizes: frozenset[Sym]) -> str | None:
    """What an expression of sizes alone is made of besides them."""
    for atom in atoms(expr):
        if atom not in sizes:
            return f"{expr} uses {atom.text}, which no input gives"
    return None


def output_problem(out: OutputRef, sizes: frozenset[Sym]) -> str | None:
    """What is wrong with a result that is no tensor."""
    return size_problem(out, sizes) if isinstance(out, IndexExpr) else None


def write_problem(target: Buffer, source: TensorRef, written: Buffer) -> str | None:
    """What is wrong with writing `source`, which is of the buffer `written`, over `target`."""
    size = (source.view or written.layout).size
    if size != target.layout.size:
        return f"{target.name} is overwritten by another shape"
    if (source.dtype or written.dtype) is not target.dtype:
        return f"{target.name}: {target.dtype} is overwritten by {source.dtype or written.dtype}"
    return None


def kind_problem(kind: ReductionKind, value: Value) -> str | None:
    """What is wrong with reducing a value so."""
    if kind in _LOGICAL and value.dtype is not DType.bool_:
        return f"{kind.value} combines bools, not {value.dtype}"
    return None


def constant_problem(root: Value) -> str | None:
    """A constant below a value that its dtype does not hold."""
    for value in post_order([root]):
        if isinstance(value, Const) and value.dtype.is_integer:
            bits = 8 * value.dtype.itemsize
            low = -(1 << bits - 1) if value.dtype.is_signed else 0
            high = low + (1 << bits)
            if not low <= value.value < high:
                return f"{value.dtype} does not hold {value.value}"
    return None


def _exprs(layout: Layout) -> Iterator[IndexExpr]:
    yield from layout.size
    yield from layout.stride
    yield layout.offset


def _overlaps(layout: Layout) -> bool:
    """Whether two coordinates are certainly one place, by numbers that are known."""
    pairs = list(zip(layout.size, layout.stride, strict=True))
    if any(size is ZERO for size, _ in pairs):
        return False
    moving = [(size, step) for size, step in pairs if not size.is_constant or size.as_int() > 1]
    if any(step is ZERO and size.is_constant for size, step in moving):
        return True
    if not all(size.is_constant and step.is_constant for size, step in moving):
        return False
    reach = 0
    for step, size in sorted((abs(step.as_int()), size.as_int()) for size, step in moving):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False
