"""Fused optimizers (``torch._fused_adam_`` and its kin) as arithmetic on each parameter.

They compute what ATen's CPU kernels do, in their order: Adam's of halves in single precision,
rounded as they are stored; what follows from the count of steps alone in double precision. Those of
GPUs compute the same but for the order of two products. Other optimizers of halves round in ways of
their own, and stay whole. With a gradient scaler gradients
are divided by the scale, and nothing changes in a step in which one was not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)
_DEVICES = ("cpu", "cuda")


def rule_of(function: object) -> Callable[..., object] | None:
    """What computes a fused optimizer's function of torch, None for other functions. It is called
    where a rate is a number that each call gives, which the function itself does not take."""
    return _BY_FUNCTION.get(function)


def fused_optimizer_rules() -> Iterator[tuple[OpOverload, Callable[..., object]]]:
    """The overloads that are taken apart, and what computes each."""
    for function, rule in _BY_FUNCTION.items():
        packet = getattr(aten, function.__name__)
        yield packet.default, rule
        yield packet.tensor_lr, rule


class _Step:
    """What all parameters of one call have in common.

    Args:
        grad_scale: what gradients were multiplied by, of one element; None for 1.
        found_inf: one where a gradient is not finite, of one element; None where all are.
        maximize: whether to go uphill.
    """

    def __init__(
        self, grad_scale: Tensor | None, found_inf: Tensor | None, *, maximize: bool
    ) -> None:
        self._scale = grad_scale
        self._skips = None if found_inf is None else found_inf == 1
        self._maximize = maximize

    def gradient(self, grad: Tensor) -> Tensor:
        """The gradient, as it is computed with; without its scale from here on."""
        value = _wide(grad)
        if self._scale is not None:
            value = value / self._scale
            self.store(grad, value)
        return -value if self._maximize else value

    def store(self, target: Tensor, value: Tensor) -> None:
        """Write a new value, unless this step changes nothing."""
        value = value.to(target.dtype)
        target.copy_(value if self._skips is None else torch.where(self._skips, target, value))


def _wide(value: Tensor) -> Tensor:
    """As it is computed with."""
    return value.float() if value.dtype in _HALVES else value


def _number(lr: float | Tensor) -> float | Tensor:
    return lr.double() if isinstance(lr, Tensor) else lr


def _adam(*given: Sequence[Tensor], **options: object) -> object:
    return _adam_like(*given, decoupled=False, **options)  # type: ignore[arg-type]  # as the schema


def _adamw(*given: Sequence[Tensor], **options: object) -> object:
    return _adam_like(*given, decoupled=True, **options)  # type: ignore[arg-type]  # as the schema


def _adam_like(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    largest: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    decoupled: bool,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> object:
    """Adam, or with ``decoupled`` weight decay AdamW (Loshchilov and Hutter, 2019)."""
    if _unlike(params, grads):
        return NotImplemented
    step = _Step(grad_scale, found_inf, maximize=maximize)
    rate = _number(lr)
    for n, param in enumerate(params):
        count = steps[n].double()
        first, second = 1 - torch.pow(beta1, count), 1 - torch.pow(beta2, count)
        grad, value = step.gradient(grads[n]), _wide(param)
        if decoupled and weight_decay != 0:
            value = value * (1 - rate * weight_decay)
        elif weight_decay != 0:
            grad = grad + value * weight_decay
        average = torch.lerp(_wide(averages[n]), grad, 1 - beta1)
        square = _wide(squares[n]) * beta2 + grad * grad * (1 - beta2)
        bound = torch.maximum(_wide(largest[n]), square) if amsgrad else square
        denominator = bound.sqrt() / second.sqrt() + eps
        value = value - average * (first.reciprocal() * rate) / denominator
        step.store(averages[n], average)
        step.store(squares[n], square)
        if amsgrad:
            step.store(largest[n], bound)
        step.store(param, value)
    return None


def _sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> object:
    if _unlike(params, grads) or params[0].dtype in _HALVES:
        return NotImplemented
    step = _Step(grad_scale, found_inf, maximize=maximize)
    for n, param in enumerate(params):
        grad, value = step.gradient(grads[n]), _wide(param)
        if weight_decay != 0:
            grad = grad + value * weight_decay
        if momentum != 0:
            moving = grad
            if not is_first_step:
                moving = _wide(buffers[n]) * momentum + grad * (1 - dampening)
            step.store(buffers[n], moving)
            grad = grad + moving * momentum if nesterov else moving
        step.store(param, value - grad * _number(lr))
    return None


def _adagrad(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    sums: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> object:
    if _unlike(params, grads) or params[0].dtype in _HALVES:
        return NotImplemented
    step = _Step(grad_scale, found_inf, maximize=maximize)
    for n, param in enumerate(params):
        decay = 1 + (steps[n].double() - 1) * lr_decay
        grad, value = step.gradient(grads[n]), _wide(param)
        if weight_decay != 0:
            grad = grad + value * weight_decay
        total = _wide(sums[n]) + grad * grad
        step.store(sums[n], total)
        step.store(param, value - grad * (decay.reciprocal() * _number(lr)) / (total.sqrt() + eps))
    return None


def _unlike(params: Sequence[Tensor], grads: Sequence[Tensor]) -> bool:
    """Whether kernels may do something else: gradients of another dtype, elements that are no
    floats, or other devices."""
    return len({param.dtype for param in params}) != 1 or any(
        param.device.type not in _DEVICES
        or param.dtype != grad.dtype
        or not param.dtype.is_floating_point
        for param, grad in zip(params, grads, strict=True)
    )


_torch: Any = torch  # whose stubs leave these out
_BY_FUNCTION: dict[Any, Callable[..., object]] = {
    _torch._fused_adam_: _adam,
    _torch._fused_adamw_: _adamw,
    _torch._fused_sgd_: _sgd,
    _torch._fused_adagrad_: _adagrad,
}
