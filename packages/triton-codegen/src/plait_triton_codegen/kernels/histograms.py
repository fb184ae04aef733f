"""Counts of computed places: what a block of points counts, added at once to what is in memory.

A scatter that adds 1 to one of few places would add to the same ones again and again, each time
after the last. A program counts its block in shared memory first, and adds each bin's count:

    t1_counts = tl.histogram(t0.to(tl.int32), 32, xmask)
    t1_bins = tl.arange(0, 32)
    tl.atomic_add(p1 + t1_bins, t1_counts, t1_bins < 10, sem="relaxed")

Counts are integers, so that is the same as adding them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait_ir_lowering import Const, DType, Local, Op, ScatterKind, Value
from plait_scheduler import Kernel, Store
from plait_triton_codegen.kernels.operations import TRITON_DTYPES
from plait_triton_codegen.kernels.space import FlatKernel, fresh
from plait_triton_codegen.kernels.values import Term, ValueWriter

MOST_BINS = 1024
"""Of more bins a block would hardly count two elements in one."""
_LEAST_BINS = 32
"""As many as a warp has threads."""
_LEAST_COUNTED = 4
"""Points for each bin from which on blocks are counted."""


@dataclass(frozen=True, slots=True)
class Counting:
    """A store that counts."""

    store: Store
    place: Local
    bins: int
    counted: Value | None
    """Which points count, a bool; None for all."""


def counting_of(flat: FlatKernel, store: Store) -> Counting | None:
    """`store` as one that counts how many points go to each of few bins; None where it is not."""
    index, dtype = store.index, store.value.dtype
    if store.kind is not ScatterKind.ADD or dtype not in (DType.i32, DType.i64):
        return None
    if len(index) != 1 or not isinstance(index[0], Local):
        return None
    param = next(each for each in flat.kernel.params if each.name == store.param)
    size = param.layout.numel
    if not param.layout.is_row_major or not size.is_constant or size.as_int() > MOST_BINS:
        return None
    numel = None if flat.xnumel is None or flat.rnumel is None else flat.xnumel * flat.rnumel
    if not size.as_int() or (numel is not None and numel < _LEAST_COUNTED * size.as_int()):
        return None
    match store.value:
        case Const(1):
            return Counting(store, index[0], size.as_int(), None)
        case Op("where", (counted, Const(1), Const(0))):
            return Counting(store, index[0], size.as_int(), counted)
    return None


def is_histogram(flat: FlatKernel) -> bool:
    """Whether a kernel counts, in blocks that are best large."""
    stores = (s for s in flat.kernel.statements if isinstance(s, Store))
    return any(counting_of(flat, store) is not None for store in stores)


def counting_lines(writer: ValueWriter, counting: Counting, kernel: Kernel) -> list[str]:
    """The lines that count a block, behind those that its values need."""
    store, bins = counting.store, max(1 << (counting.bins - 1).bit_length(), _LEAST_BINS)
    param = next(each for each in kernel.params if each.name == store.param)
    domain = frozenset("x" if writer.flat.r is None else "xr")
    counted = None if counting.counted is None else writer.write(counting.counted)
    mask = writer.mask(domain, counted)
    place = writer.locals[counting.place.name]
    given = [_row(writer, Term(f"{place.grouped()}.to(tl.int32)", place.axes), domain), str(bins)]
    if mask is not None:
        given.append(f"mask={_row(writer, mask, domain)}")
    counts, lanes = (fresh(f"{place.text}_{name}", writer.taken) for name in ("counts", "bins"))
    start = writer.index(param.layout.offset).text
    pointer = param.name if start == "0" else f"{param.name} + {start}"
    inside = "" if bins == counting.bins else f", {lanes} < {counting.bins}"
    kind = TRITON_DTYPES[store.value.dtype]
    return [
        f"{counts} = tl.histogram({', '.join(given)}).to({kind})",
        f"{lanes} = tl.arange(0, {bins})",
        f'tl.atomic_add({pointer} + {lanes}, {counts}{inside}, sem="relaxed")',
    ]


def _row(writer: ValueWriter, term: Term, domain: frozenset[str]) -> str:
    """A block as one row of elements."""
    shape = writer.shape(domain)
    text = term.text if term.axes == domain else f"tl.broadcast_to({term.text}, {shape})"
    return text if len(domain) == 1 else f"tl.reshape({text}, [XBLOCK * RBLOCK])"
