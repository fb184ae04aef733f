"""What autograd sees where wrappers become the tensors that they hold, and back.

A wrapper is one tensor to autograd, and its gradient may be of another kind: plain for a weight
that is stored as integers. So gradients of wrappers do not pass through what they hold, but
through *anchors*: one tensor, of no more than a size, for each tensor that the gradient holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from plait_fx_passes.errors import AtenTraceError
from plait_utils import dataclass
from plait_utils.wrappings import Wrapping, is_plain, wrapping_of


@dataclass(frozen=True, slots=True)
class Leaf:
    """A plain tensor of a gradient."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Leaf:
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device)


@dataclass(frozen=True, slots=True)
class GradientKind:
    """What a gradient consists of: a plain tensor, or what a wrapper of a kind holds."""

    wrapping: Wrapping | None
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, gradient: torch.Tensor) -> GradientKind:
        """Raises AtenTraceError for a subclass that does not say what it holds."""
        wrapping = wrapping_of(gradient)
        if wrapping is None and not is_plain(type(gradient)):
            raise AtenTraceError(f"a gradient is a {type(gradient).__name__}")
        plain = [gradient] if wrapping is None else wrapping.flatten(gradient)
        return cls(wrapping, tuple(map(Leaf.of, plain)))

    def is_like(self, other: GradientKind) -> bool:
        """Whether gradients of both kinds have equal parts, which may lie otherwise in memory."""
        if self.leaves != other.leaves:
            return False
        if self.wrapping is None or other.wrapping is None:
            return self.wrapping is other.wrapping
        return self.wrapping.is_like(other.wrapping)

    def flatten(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        return [gradient] if self.wrapping is None else self.wrapping.flatten(gradient)

    def build(self, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        return leaves[0] if self.wrapping is None else self.wrapping.build(leaves)

    def copied(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """The parts as tensors of their own over the same memory."""
        return [each.data for each in self.flatten(gradient)]

    def anchors(self) -> list[torch.Tensor]:
        """Tensors that have the sizes of the gradient's, in the memory of one element each."""
        return [
            torch.empty_strided(
                each.shape, (0,) * len(each.shape), dtype=each.dtype, device=each.device
            )
            for each in self.leaves
        ]


def expected_kind(value: torch.Tensor, wrapping: Wrapping) -> GradientKind:
    """What a gradient of a wrapper probably is: like it where that can hold gradients."""
    leaves = wrapping.flatten(value)
    if all(map(is_differentiable, leaves)):
        return GradientKind(wrapping, tuple(map(Leaf.of, leaves)))
    return GradientKind(None, (Leaf.of(value),))


class Into(torch.autograd.Function):
    """From the tensors that a wrapper's gradient will consist of to the wrapper.

    After these come tensors that get gradients where the wrapper's is of another kind: what
    ``otherwise`` makes of it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: GradientKind,
        build: Callable[[], torch.Tensor],
        otherwise: Callable[[torch.Tensor], Sequence[torch.Tensor | None]] | None,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.otherwise = kind, otherwise
        ctx.rest = len(tensors) - len(kind.leaves)
        return build()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        kind: GradientKind = ctx.kind
        nothing: list[None] = [None] * ctx.rest
        if gradient is None:
            return (None, None, None, *(None for _ in kind.leaves), *nothing)
        if not kind.is_like(GradientKind.of(gradient)):
            if ctx.otherwise is None:
                raise AtenTraceError("a gradient of a tensor subclass is of an unexpected kind")
            found = ctx.otherwise(gradient)
            return (None, None, None, *(None for _ in kind.leaves), *found)
        if not torch.is_grad_enabled():
            return (None, None, None, *kind.flatten(gradient), *nothing)
        parts = out_of([kind], lambda: kind.copied(gradient), [gradient])
        return (None, None, None, *parts, *nothing)


class _OutOf(torch.autograd.Function):
    """From wrappers to tensors: those that they hold, or anchors for their gradients.

    Gradients of these make the wrappers' own.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kinds: Sequence[GradientKind],
        take: Callable[[], list[torch.Tensor]],
        *values: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.kinds = kinds
        return tuple(take())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        made: list[torch.Tensor | None] = []
        start = 0
        for kind in ctx.kinds:
            end = start + len(kind.leaves)
            made.append(_gradient(kind, gradients[start:end]))
            start = end
        return (None, None, *made)


def out_of(
    kinds: Sequence[GradientKind],
    take: Callable[[], list[torch.Tensor]],
    values: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor]:
    """What ``take`` gives: tensors of which gradients make those of wrappers, of these kinds."""
    apply = cast("Callable[..., Sequence[torch.Tensor]]", _OutOf.apply)
    return apply(kinds, take, *values)


def _gradient(kind: GradientKind, leaves: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """A gradient of these parts, of which some may be zero."""
    if all(each is None for each in leaves):
        return None
    given = [
        torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device) if each is None else each
        for each, leaf in zip(leaves, kind.leaves, strict=True)
    ]
    if not torch.is_grad_enabled():
        return kind.build(given)
    make = cast("Callable[..., torch.Tensor]", Into.apply)
    return make(kind, lambda: kind.build([each.data for each in given]), None, *given)


def is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex
