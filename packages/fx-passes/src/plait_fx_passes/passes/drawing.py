"""An operator that draws on a GPU, and the calls that take its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import has_static_sizes, is_dense, memory_order
from plait_fx_passes.passes.base import PassContext
from plait_fx_passes.passes.calls import Calls
from plait_utils import dataclass
from plait_utils.philox import UNIFORM, UNROLL, advance

aten = torch.ops.aten

_MOST_BYTES = 2**31 - 1
"""Of more, ATen's kernels of distributions draw part by part."""


@dataclass(slots=True)
class Reserved:
    """A state, and how far what is drawn from it moves it on."""

    node: fx.Node
    count: int | torch.SymInt = 0


@dataclass(slots=True)
class Drawing:
    """One operator that draws, and the calls that take its place.

    ``value`` is its first result.
    """

    context: PassContext
    node: fx.Node
    value: torch.Tensor
    calls: Calls
    threads: int
    state: Reserved
    step: int | torch.SymInt = 0
    """How far it moves the generator on, when that is known."""

    def number(self, position: int, default: float | None = None) -> float | None:
        """An argument that may be left out, by its place in the schema; None for one that each call
        gives anew."""
        found = self._argument(position, default)
        return float(found) if isinstance(found, (int, float)) else None

    def integer(self, position: int) -> int | None:
        """The same of an integer."""
        found = self._argument(position, None)
        return found if isinstance(found, int) else None

    def _argument(self, position: int, default: object) -> object:
        args, name = self.node.args, schema(self.node).arguments[position].name
        return args[position] if position < len(args) else self.node.kwargs.get(name, default)

    def numbers(self, dtype: torch.dtype, vector: int = 1, by_rows: bool = False) -> fx.Node:
        """One for each element of the result: in the order of memory, or row by row."""
        by_rows = by_rows or not has_static_sizes(self.value)
        order = list(range(self.value.dim())) if by_rows else memory_order(self.value)
        return self._drawn(UNIFORM, order, UNROLL[dtype], dtype, vector, dtype)

    def of_distribution(
        self, op: OpOverload, unroll: int, dtype: torch.dtype, *args: Any
    ) -> fx.Node:
        """What an operator gives for each element of the result, in the order of memory, which
        draws so many at once; its last arguments are `args`."""
        return self._drawn(op, memory_order(self.value), unroll, dtype, *args)

    def _drawn(
        self, op: OpOverload, order: Sequence[int], unroll: int, dtype: torch.dtype, *args: Any
    ) -> fx.Node:
        self.step = advance(self.value.numel(), self.threads, unroll)
        size = [self.value.shape[dim] for dim in order]
        value = self.context.fake(size, dtype, self.value.device)
        given = self.state.node, size, self.state.count, self.threads, *args
        made = self.calls.known(value, op, *given)
        if list(order) == sorted(order):
            return made
        return self.calls(aten.permute.default, made, [order.index(dim) for dim in sorted(order)])

    def cast(self, node: fx.Node) -> fx.Node:
        """As the dtype of the result."""
        if node.meta["val"].dtype == self.value.dtype:
            return node
        return self.calls(aten._to_copy.default, node, dtype=self.value.dtype)


def schema(node: fx.Node) -> torch._C.FunctionSchema:
    return cast(OpOverload, node.target)._schema


Made: TypeAlias = "tuple[fx.Node, ...] | None"
"""What takes the place of its results; None where nothing can."""
Rule: TypeAlias = Callable[[Drawing], Made]


def wide(dtype: torch.dtype) -> torch.dtype:
    """What ATen draws for a dtype."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def is_distribution(drawing: Drawing) -> bool:
    """Whether one kernel of a distribution draws the result, in the order of its memory."""
    value = drawing.value
    if not has_static_sizes(value):
        return False
    short = value.numel() * value.dtype.itemsize <= _MOST_BYTES
    return short and is_dense(value) and drawing.node.kwargs.get("generator") is None
