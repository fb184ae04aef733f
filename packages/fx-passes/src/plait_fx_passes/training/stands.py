"""Stand-ins for inputs whose place in autograd's graph may become another.

Gradients that are differentiated flow to the inputs of a program as they were when it ran. An input
that has a history gets another one where it is written to, which autograd refuses only for what it
has saved; so where it has saved none of an input, a stand-in keeps the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from plait_fx_passes.layouts import has_static_sizes, same_strides
from plait_fx_passes.training.freeing import check_versions

Stands: TypeAlias = "Mapping[int, torch.Tensor]"
"""Stand-ins, by placeholder."""


class _Stand(torch.autograd.Function):
    """The same values, or none, of a geometry of its own; gradients pass as they are."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
        return tensor.data if like is None else like

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, None]:
        return given, None


_stand: Callable[..., torch.Tensor] = _Stand.apply


def stands_for(places: Sequence[int], inputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Stand-ins for those of the inputs that have a history, as they are now."""
    if not torch.is_grad_enabled():
        return {}
    return {n: _stand(inputs[n], None) for n in places if not inputs[n].is_leaf}


def changed_since(
    now: torch.Tensor, then: torch.Tensor, version: int, *, stands: bool
) -> torch.Tensor:
    """What gradients flow to in the place of an input that was changed since, of which no values
    are read.

    Args:
        now: the input, or what ``stands`` for it.
        then: a fake tensor of its geometry when the program ran.
        version: how often it had been changed.

    Raises:
        RuntimeError: it has got a history since, and nothing stands for it.
    """
    if not stands and not now.is_leaf:
        check_versions([now], [version])
    from plait_fx_passes.training.gradient_program import stand_in

    copy = now.clone()
    geometry = then if has_static_sizes(then) else now
    if same_strides(copy, geometry):
        return copy
    size, stride = tuple(geometry.shape), tuple(geometry.stride())
    return _stand(now, stand_in(size, stride, now.dtype, now.device, requires_grad=False))
