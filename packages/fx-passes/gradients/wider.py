"""More of what random programs may do: functions with gradients of their own, checkpoints, hooks,
complex numbers, integers, inputs whose elements share memory, and several backwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

VIEWS = (
    *("{a}.transpose(0, -1)", "{a}.chunk(2)[-1]", "{a}.tensor_split(2)[0]", "{a}.unfold(0, 2, 1)"),
    *("{a}.swapaxes(0, -1)", "{a}.expand(2, *{a}.shape)", "{a}.T", "{a}.mT", "{a}.select(-1, 0)"),
    *("torch.view_as_real({a})", "{a}.real", "{a}.imag", "{a}.conj()", "{a}.data", "{a}[None]"),
    *("{a}.split([1, 1, 1])[1]", "{a}.ravel()", "{a}.permute(*reversed(range({a}.dim())))"),
)
PURE = (
    *("{a}.argmax(-1)", "{a} > 0", "{a}.topk(1)[0]", "{a}.sort(-1)[1]", "{a}.long()", "{a}.prod()"),
    *("Scaled.apply({a})", "Counted.apply({a})[0]", "Counted.apply({a})[1]", "Maybe.apply({a})[0]"),
    *("Pair.apply({a}, {b})[0]", "Pair.apply({a}, {b})[1]", "Dirty.apply({a} * 1)", "{a}.std()"),
    *("checkpoint(waves, {a}, use_reentrant=False)", "hooked({a})", "hooked({a}, {b})"),
    *("{a}.pow(3)", "{a} / ({b}.abs() + 1)", "{a}.roll(1)", "{a}.tril()", "{a}.logsumexp(-1)"),
    *("torch.complex({a}, {b})", "torch.complex({a}, {a})", "{a}.abs()", "{a}.gather(0, places)"),
    *("{a}.sqrt()", "{a}.masked_fill({a} > 0, 0.5)", "torch.stack([{a}, {b}])", "{a}.norm()"),
    *("{a}.requires_grad", "{a}.mean((0,), keepdim=True)", "{a}.scatter(0, places, 2.0)", "None"),
)
WRITES = (
    *("{a}.exp_()", "{a}.tanh_()", "{a}.div_(2)", "{a}.abs_()", "{a}.pow_(2)", "{a}.sub_({b})"),
    *("{a}.addcmul_({b}, {b})", "{a}.lerp_({b}, 0.3)", "{a}.index_fill_(0, index, 0.5)"),
    *("{a}.scatter_add_(0, places, {b})", "{a}[..., 0] += {b}.sum()", "{a}.cumsum_(0)"),
    *("{a}[{a} > 0] = 0.5", "{a}.diagonal().mul_(2)", "{a}.data.mul_(2)", "{a}.t().add_(1)"),
    *("{a}.transpose_(0, -1)", "{a}.unsqueeze_(0)", "{a}.swapaxes_(0, -1)", "{a}.requires_grad_()"),
    *("Dirty.apply({a})", "{a}.index_put_((index,), {b}[:2])"),
)  # fmt: skip
ALIASING = ("expanded", "columns", "transposed")
BACKWARDS = (
    *("once", "twice", "retained", "one by one", "accumulated", "changed between"),
    *("by results", "hooked"),
)


class Scaled(torch.autograd.Function):
    """Three times; its gradient, too, of what it has saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return given * 3 + (x - x)


class Counted(torch.autograd.Function):
    """A value, and integers without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        count = (x > 0).sum(-1)
        ctx.mark_non_differentiable(count)
        return x.sin(), count

    @staticmethod
    def backward(ctx: Any, given: Tensor, count: Tensor) -> Tensor:
        return given * 2


class Maybe(torch.autograd.Function):
    """A gradient only where one is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, None]:
        ctx.set_materialize_grads(False)
        return x.cos(), None

    @staticmethod
    def backward(ctx: Any, given: Tensor | None, _: None) -> Tensor | None:
        return None if given is None else given * 0.5


class Pair(torch.autograd.Function):
    """Two of each, with gradients that are None where none comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x + 1, y * 2

    @staticmethod
    def backward(
        ctx: Any, one: Tensor | None, other: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        return one, None if other is None else other * 2


class Dirty(torch.autograd.Function):
    """Changes what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return given * 2


def waves(x: Tensor) -> Tensor:
    """What is computed again in a checkpoint."""
    return x.sin() * x.exp()


def doubled(gradient: Tensor) -> Tensor:
    """A hook."""
    return gradient * 2


def hooked(x: Tensor, y: Tensor | None = None) -> Tensor:
    """The sum of tensors, of which gradients are doubled and then multiplied by that of a view."""
    made = x * 1 if y is None else x + y
    if made.requires_grad:
        made.register_hook(doubled)
        made.register_hook(lambda gradient: gradient * gradient.flatten()[0])
    return made


SCOPE: dict[str, object] = {
    **{each.__name__: each for each in (Scaled, Counted, Maybe, Pair, Dirty, waves, hooked)},
    "checkpoint": checkpoint,
}
"""What programs call."""


def alias(first: Tensor, second: Tensor, kind: str) -> list[Tensor]:
    """Arguments that lie in memory in a way of their own."""
    return {
        "expanded": [first, second, first[:1].expand(3, 4)],
        "columns": [first[:, :2], second, first[:, 1:]],
        "transposed": [first, second, first.t()],
    }[kind]
