"""Sizes in bytes and points, as numbers for cost estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from plait_ir_lowering import (
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
)

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


def size_places(inputs: Sequence[Layout], symbols: Sequence[str]) -> dict[str, tuple[int, int]]:
    """For each size that the inputs have as a dimension, the input and the dimension."""
    found: dict[str, tuple[int, int]] = {}
    for place, layout in enumerate(inputs):
        for dim, size in enumerate(layout.size):
            if str(size) in symbols:
                found.setdefault(str(size), (place, dim))
    return {symbol: found[symbol] for symbol in symbols if symbol in found}
