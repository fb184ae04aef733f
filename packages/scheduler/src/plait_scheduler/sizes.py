"""Sizes in bytes and points, as numbers for cost estimates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from plait_ir_lowering import (
    Atom,
    Buffer,
    CheckedIndex,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Sym,
    Value,
    as_index,
    atoms,
    evaluate,
    post_order,
    substitute,
)
from plait_utils import dataclass

SYMBOL_ESTIMATE = 64
"""What a size that is not known yet is taken to be in cost estimates."""


def expressions_in(value: Value) -> Iterator[IndexExpr]:
    """The index expressions that a value is computed from."""
    for part in post_order([value]):
        match part:
            case IndexValue(expr):
                yield expr
            case CheckedIndex(_, size):
                yield size
            case Load(_, index, _):
                yield from (each for each in index if isinstance(each, IndexExpr))


def estimate(expr: IndexExpr) -> int:
    """The value of `expr`, with a guess for each size that is not known yet."""
    if expr.is_constant:
        return expr.as_int()
    guesses = {atom.name: _guess(atom) for atom in atoms(expr) if isinstance(atom, Sym)}
    return evaluate(expr, guesses)


def _guess(size: Sym) -> int:
    most = SYMBOL_ESTIMATE if size.upper is None else min(SYMBOL_ESTIMATE, size.upper)
    return max(most, size.lower)


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of the elements of `buffer`."""
    return _elements(buffer.layout) * buffer.dtype.itemsize


@lru_cache(16384)
def _elements(layout: Layout) -> int:
    return estimate(layout.numel)


@lru_cache(16384)
def extent_of(layout: Layout) -> IndexExpr:
    """Elements from the data pointer to behind the last element; 0 if there are none."""
    extent = layout.offset + 1
    for size, stride in zip(layout.size, layout.stride, strict=True):
        if size.is_constant and size.as_int() == 0:
            return as_index(0)
        extent = extent + (size - 1) * stride
    return extent


@lru_cache(16384)
def collapsed(layout: Layout) -> Layout:
    """The same elements in the same order, with as few dimensions as possible.

    Layouts that differ only in how dimensions are merged, or in dimensions of size 1,
    collapse to the same one.
    """
    size: list[IndexExpr] = []
    stride: list[IndexExpr] = []
    for extent, step in zip(reversed(layout.size), reversed(layout.stride), strict=True):
        if extent is as_index(1):
            continue
        if size and step is stride[-1] * size[-1]:
            size[-1] = size[-1] * extent
        else:
            size.append(extent)
            stride.append(step)
    return Layout(tuple(reversed(size)), tuple(reversed(stride)), layout.offset)


def at_sizes(expr: IndexExpr, sizes: Mapping[str, IndexExpr]) -> IndexExpr:
    """`expr` where sizes, by name, have these values."""
    known: dict[Atom, IndexExpr] = {
        atom: sizes[atom.name]
        for atom in atoms(expr)
        if isinstance(atom, Sym) and atom.name in sizes
    }
    return substitute(expr, known) if known else expr


def layout_at(layout: Layout, sizes: Mapping[str, IndexExpr]) -> Layout:
    """`layout` where sizes, by name, have these values."""
    size, stride = (
        tuple([at_sizes(each, sizes) for each in part]) for part in (layout.size, layout.stride)
    )
    return Layout(size, stride, at_sizes(layout.offset, sizes))


def in_memory_order(layout: Layout) -> Layout:
    """The same elements with dimensions in the order of memory, where strides are known."""
    if not all(stride.is_constant for stride in layout.stride):
        return layout
    order = sorted(range(len(layout.size)), key=lambda n: (-layout.stride[n].as_int(), n))
    size, stride = ([each[n] for n in order] for each in (layout.size, layout.stride))
    return Layout(tuple(size), tuple(stride), layout.offset)


@dataclass(frozen=True, slots=True)
class SizePlace:
    """Which size or stride of which input a symbol is."""

    input: int
    dim: int
    is_stride: bool = False

    def text(self, tensor: str) -> str:
        """Python that reads it from the input, whose text is given."""
        return f"{tensor}.{'stride' if self.is_stride else 'size'}({self.dim})"


def size_places(inputs: Sequence[Layout], symbols: Sequence[str]) -> dict[str, SizePlace]:
    """Where the inputs tell symbols: as sizes, or else as strides."""
    found: dict[str, SizePlace] = {}
    for is_stride in (False, True):
        for place, layout in enumerate(inputs):
            for dim, number in enumerate(layout.stride if is_stride else layout.size):
                if str(number) in symbols:
                    found.setdefault(str(number), SizePlace(place, dim, is_stride))
    return {symbol: found[symbol] for symbol in symbols if symbol in found}
