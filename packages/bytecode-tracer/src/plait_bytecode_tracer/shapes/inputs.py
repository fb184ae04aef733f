"""Tensors of the call with symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

import torch

from plait_bytecode_tracer.guards import Range
from plait_bytecode_tracer.shapes.expressions import Applied, Leaf
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.shapes.policy import Policy
from plait_bytecode_tracer.shapes.symbols import Symbols
from plait_bytecode_tracer.values.sources import Source
from plait_utils import dataclass

Size: TypeAlias = int | torch.SymInt


@dataclass(slots=True)
class SymbolicSizes:
    """The sizes and strides of one tensor, and what its guard says of them."""

    sizes: list[Size]
    strides: list[Size]
    ranges: tuple[int | Range, ...]
    fixed_strides: list[int | None]
    follows: list[tuple[Leaf, Leaf, Leaf]] = field(default_factory=list)
    """Strides that are a size times another stride."""

    def relate(self, symbols: Symbols) -> None:
        """Guard the strides that follow from sizes."""
        for stride, size, inner in self.follows:
            read = [f"{leaf.source.text}.{leaf.read}({leaf.dim})" for leaf in (stride, size, inner)]
            text = f"{read[0]} == {read[1]} * {read[2]}"
            relation = Applied("{0} == {1} * {2}", (stride, size, inner))
            symbols.relate(relation, text)


def symbolic_sizes(
    symbols: Symbols,
    policy: Policy,
    tensor: torch.Tensor,
    source: Source,
    chosen: Mapping[int, Mark],
) -> SymbolicSizes:
    """Symbols for the chosen dimensions, and for strides that come with them."""
    sizes: list[Size] = [
        symbols.size(source, dim, size) if dim in chosen else size
        for dim, size in enumerate(tensor.shape)
    ]
    ranges = tuple(
        symbols.size_range(chosen[dim]) if dim in chosen else size
        for dim, size in enumerate(tensor.shape)
    )
    strides: list[Size] = list(tensor.stride())
    made = SymbolicSizes(sizes, strides, ranges, list(tensor.stride()))
    for dim in sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d)):
        _choose_stride(made, symbols, policy, tensor, source, dim)
    return made


def _choose_stride(
    made: SymbolicSizes,
    symbols: Symbols,
    policy: Policy,
    tensor: torch.Tensor,
    source: Source,
    dim: int,
) -> None:
    """A stride stays what it is, is a size times another stride, or a symbol of its own."""
    changes = policy.stride_changes(source, tensor, dim)
    if changes is False:
        return
    value = tensor.stride(dim)
    for inner in reversed(range(tensor.dim())):
        symbolic = isinstance(made.sizes[inner], torch.SymInt) or made.fixed_strides[inner] is None
        is_inside = tensor.stride(inner) < value or (tensor.stride(inner) == value and inner > dim)
        if symbolic and is_inside and tensor.shape[inner] * tensor.stride(inner) == value:
            made.strides[dim] = made.sizes[inner] * made.strides[inner]
            made.fixed_strides[dim] = None
            leaves = (
                Leaf(source, "stride", dim),
                Leaf(source, "size", inner),
                Leaf(source, "stride", inner),
            )
            made.follows.append(leaves)
            return
    if changes:
        made.strides[dim] = symbols.stride(source, dim, value)
        made.fixed_strides[dim] = None
