"""Tensors while a graph is lowered: a value at each point of named dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import TensorRef
from plait_ir_lowering.ir.index import ZERO, Atom, IndexExpr, Var
from plait_ir_lowering.ir.index_queries import substitute
from plait_ir_lowering.ir.values import Value, rewrite
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class TensorExpr:
    """A tensor as an expression over its own dimensions.

    A view is the same expression at other coordinates; a buffer is a load. `ref` names
    the storage and strides where the tensor is one that exists in memory.
    """

    dims: tuple[Var, ...]
    value: Value
    ref: TensorRef | None = None

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def shape(self) -> tuple[IndexExpr, ...]:
        return tuple(dim.extent for dim in self.dims)

    def at(self, coordinates: Sequence[IndexExpr]) -> Value:
        """The element at `coordinates`, one for each dimension."""
        places: dict[Atom, IndexExpr] = dict(zip(self.dims, coordinates, strict=True))
        return move(self.value, places)

    def broadcast_at(self, coordinates: Sequence[IndexExpr]) -> Value:
        """The element that broadcasting pairs with `coordinates` of a larger shape."""
        own = coordinates[len(coordinates) - len(self.dims) :]
        places = [
            ZERO if dim.extent.is_constant and dim.extent.as_int() == 1 else coordinate
            for dim, coordinate in zip(self.dims, own, strict=True)
        ]
        return self.at(places)


@dataclass(frozen=True, slots=True)
class NumberExpr:
    """A number that each call gives anew: a buffer of one f64, or arithmetic on such."""

    value: Value


def move(value: Value, places: Mapping[Atom, IndexExpr]) -> Value:
    """`value` with index variables replaced."""
    return rewrite(value, lambda _: None, lambda index: substitute(index, places))


def dimensions(shape: Sequence[IndexExpr | int], prefix: str = "i") -> tuple[Var, ...]:
    """One variable for each dimension of `shape`, numbered from 0.

    The prefix is not "s": so sizes are named that are known only when the program runs.
    """
    return tuple(Var(f"{prefix}{n}", extent) for n, extent in enumerate(shape))
