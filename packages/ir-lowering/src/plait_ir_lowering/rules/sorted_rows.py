"""Sorts and top-k of rows on GPUs, as kernels that hold rows in registers.

Elements are sorted as integers that hold their positions (`sorted_keys.py`), so equal elements
stay in order, and of these top-k takes the first. Which sorts become kernels, a table says. Of rows
that no program holds top-k takes first the least keys of each block, then those of these:

    logits 152064 ─▶ 50 of each of 75 blocks of 2048 ─▶ 50 of 3750
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Sort, sorted_words
from plait_ir_lowering.ir.index import IndexExpr, Var
from plait_ir_lowering.ir.values import IndexValue, Masked, Op, packed
from plait_ir_lowering.rules.sorted_keys import Keys, keys_of
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Up to which sizes kernels are taken."""

    sorted: int
    """Elements of rows that are sorted, and of which any number is taken."""
    chosen: tuple[tuple[int, int], ...]
    """How many elements are taken of rows of how many, and of blocks of longer rows."""
    alone: int
    """Elements of rows of which one is taken, wherever it is."""
    blocks: tuple[tuple[int, int], ...]
    """How many elements are taken block by block of how many of all rows together."""


LIMITS: Mapping[int, Limits] = MappingProxyType(
    {
        4: Limits(1024, ((8, 4096), (64, 2048)), 512, ((8, 1 << 22), (64, 1 << 20))),
        8: Limits(512, ((8, 4096), (64, 2048)), 512, ((8, 1 << 22), (64, 1 << 20))),
        12: Limits(256, ((8, 2048), (64, 1024)), 128, ((8, 1 << 22), (64, 1 << 19))),
    }
)
"""By the bytes of a key, the sizes up to which an H200 takes less time than by ATen, of 64 to
65536 rows. Sorts: 1.7 times less of 1024 bfloat16 and 512 float32, from 2.7 to 50 times less of
shorter rows, 1.2 to 4 times more of longer ones. The largest 8 of 4096: 1.3 times less and more, of
shorter rows 2 to 18 times; the largest 64 of 2048: 1.1 times and more. Rows of 4096 keys are what
one program holds in registers. Keys of 12 bytes, of elements of 64 bits: 3 to 16 times less of 64
to 256 elements, of 512 as much; the largest 8 of 2048 and 64 of 1024: 2 times less and more. One
element, which ATen finds without sorting: 1.1 to 8 times less up to these sizes, of 256 elements of
64 bits 0.8 times. Blocks: the largest 50 of a row of 152064 in a third to two thirds of the time,
of 16 such rows in as much; the largest 8 of these in half of it."""
LONGEST = 4096
"""Keys of a row that one program takes the least from."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The keys of a tensor's rows, which lie along one of its dimensions."""

    keys: Keys
    words: tuple[TensorExpr, ...]
    """The words of the keys, at each of the tensor's points."""
    along: int

    @property
    def length(self) -> int:
        return self.words[0].shape[self.along].as_int()

    def least(self, ctx: LoweringContext, kept: int) -> Rows:
        """The least keys of each row in ascending order, as buffers."""
        dims = dimensions(self.words[0].shape)
        value = packed([word.at([dim.expr for dim in dims]) for word in self.words])
        made = [*dims]
        made[self.along] = Var(dims[self.along].name, kept)
        words = tuple(
            ctx.computed(Sort(dims, dims[self.along], value, word), tuple(made), word.dtype, "keys")
            for word in sorted_words(value)
        )
        return Rows(self.keys, words, self.along)

    def results(self, ctx: LoweringContext) -> tuple[TensorExpr, ...]:
        """The elements that have the least keys, and their positions: as many as the call gives."""
        dims = dimensions(self.words[0].shape)
        value = packed([word.at([dim.expr for dim in dims]) for word in self.words])
        words = sorted_words(value)
        return tuple(
            ctx.define(Sort(dims, dims[self.along], value, result), like)
            for result, like in zip(
                (self.keys.element_of(words), self.keys.position_of(words)),
                ctx.results,
                strict=True,
            )
        )

    def cut(self, size: int) -> Rows:
        """Rows in blocks of `size`, a dimension more; what lies behind a row's end is largest."""
        count = -(-self.length // size)
        shape = [dim.extent for dim in self.words[0].dims]
        dims = dimensions([*shape[: self.along], count, size, *shape[self.along + 1 :]])
        places = [dim.expr for dim in dims]
        position = places[self.along] * size + places[self.along + 1]
        inside = [*places[: self.along], position, *places[self.along + 2 :]]
        exists = Op("lt", [IndexValue(position), constant(self.length, DType.i64)])
        whole = self.length % size == 0
        words = tuple(
            TensorExpr(dims, word.at(inside) if whole else Masked(exists, word.at(inside), largest))
            for word, largest in zip(self.words, self.keys.largest, strict=True)
        )
        return Rows(self.keys, words, self.along + 1)

    def joined(self) -> Rows:
        """Rows of what the blocks of each row have."""
        shape, size = self.words[0].shape, self.length
        blocks = self.along - 1
        count = shape[blocks].as_int()
        dims = dimensions([*shape[:blocks], count * size, *shape[self.along + 1 :]])
        places = [dim.expr for dim in dims]
        place = places[blocks]
        own: Sequence[IndexExpr] = (
            *places[:blocks],
            place // size,
            place % size,
            *places[self.along :],
        )
        words = tuple(TensorExpr(dims, word.at(own)) for word in self.words)
        return Rows(self.keys, words, blocks)


def rows_of(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    kept: int | None,
    *,
    descending: bool,
    alone: bool = False,
) -> Rows | None:
    """The keys of the elements of `x` along `axis`, of which all or the first `kept` are wanted in
    order, or one of these `alone`; None where that is not for a kernel that holds rows."""
    along = axis + len(x.dims) if axis < 0 else axis
    if not _has_kernels(ctx) or obstacle(x.dtype, x.shape, along, kept, alone=alone) is not None:
        return None
    return _keyed(x, along, descending=descending)


def sorted_rows(
    ctx: LoweringContext, x: TensorExpr, axis: int, kept: int | None, *, descending: bool
) -> tuple[TensorExpr, ...] | None:
    """The elements of `x` along `axis` in order, all or the first `kept`, and their positions.

    None where that is not for kernels.
    """
    rows = rows_of(ctx, x, axis, kept, descending=descending)
    if rows is not None:
        return rows.results(ctx)
    along = axis + len(x.dims) if axis < 0 else axis
    if not _has_kernels(ctx) or obstacle_to_blocks(x.dtype, x.shape, along, kept) is not None:
        return None
    assert kept is not None, "rows that are sorted are not cut"
    rows = _keyed(x, along, descending=descending)
    size = _block(_limits(rows.keys), kept)
    while rows.length > LONGEST:
        rows = rows.cut(size).least(ctx, kept).joined()
    return rows.results(ctx)


def obstacle(
    element: DType,
    shape: Sequence[IndexExpr],
    along: int,
    kept: int | None,
    *,
    alone: bool = False,
) -> str | None:
    """Why no kernel sorts rows of such elements that it holds as wholes, or takes the first `kept`,
    or one of these `alone`; None where one does."""
    if not shape or not shape[along].is_constant:
        return "rows have no length that is known before the program runs"
    length = shape[along].as_int()
    keys = keys_of(element, length, descending=False)
    if keys is None or not length or kept == 0:
        return f"{length} elements of {element} have no keys to sort by"
    limits = _limits(keys)
    if alone and length > limits.alone:
        return f"{length} elements of {element} are more than the {limits.alone} that kernels order"
    if length <= limits.sorted or (kept is not None and length <= _block(limits, kept)):
        return None
    if kept is None:
        return f"{length} elements of {element} are more than the {limits.sorted} that kernels sort"
    known = ", ".join(f"{k} of {n}" for k, n in limits.chosen)
    known = f"{known}, or sort {limits.sorted}"
    return f"{kept} of {length} elements of {element} are more than kernels find: {known}"


def obstacle_to_blocks(
    element: DType, shape: Sequence[IndexExpr], along: int, kept: int | None
) -> str | None:
    """Why kernels do not take the first `kept` elements of long rows block by block; None where
    they do."""
    found = obstacle(element, shape, along, kept)
    if found is None or kept is None or not shape or not shape[along].is_constant:
        return found
    keys = keys_of(element, shape[along].as_int(), descending=False)
    if keys is None or not kept or not _block(_limits(keys), kept):
        return found
    if not all(extent.is_constant for extent in shape):
        return f"{found}; how many rows there are is not known before the program runs"
    total = prod(extent.as_int() for extent in shape)
    most = next(most for count, most in _limits(keys).blocks if kept <= count)
    if not total or total > most:
        return f"{found}; and {total} elements are more than the {most} that blocks are made of"
    return None


def _has_kernels(ctx: LoweringContext) -> bool:
    on_gpu = ctx.result.device.type == "cuda"
    return on_gpu and ctx.options.sort_kernels and not ctx.options.exact


def _keyed(x: TensorExpr, along: int, *, descending: bool) -> Rows:
    keys = keys_of(x.dtype, x.shape[along].as_int(), descending=descending)
    assert keys is not None, "only rows that have keys are taken"
    words = keys.words(x.value, x.dims[along].expr)
    return Rows(keys, tuple(TensorExpr(x.dims, word) for word in words), along)


def _limits(keys: Keys) -> Limits:
    return LIMITS[sum(dtype.itemsize for dtype in keys.dtypes)]


def _block(limits: Limits, kept: int) -> int:
    """Of how many elements the first `kept` are taken at once; 0 for too many."""
    return max((n for most, n in limits.chosen if kept <= most), default=0)
