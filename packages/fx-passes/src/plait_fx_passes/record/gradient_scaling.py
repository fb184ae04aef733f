"""The operators of ``torch.amp.GradScaler`` in plain ones, as ATen's kernels compute them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unscale(grads: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> object:
    """``_amp_foreach_non_finite_check_and_unscale_``: multiply each gradient by the inverse of the
    scale, and set ``found_inf`` to one where a gradient holds what is not finite."""
    if any(each.layout is not torch.strided for each in grads):
        return NotImplemented
    for each in grads:
        is_bad = torch.isfinite(each).logical_not().any()
        found_inf.copy_(torch.where(is_bad, torch.ones_like(found_inf), found_inf))
        each.mul_(inv_scale)
    return None


def update_scale(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Tensor:
    """``_amp_update_scale_``: a smaller scale after what is not finite, and a larger one after
    ``growth_interval`` steps without; one that would not be finite stays. Kernels multiply in
    double precision."""
    is_bad = found_inf != 0
    successes = growth_tracker + 1
    is_due = successes == growth_interval
    wide = scale.double()
    larger, smaller = (wide * scale_growth_factor).float(), (wide * scale_backoff_factor).float()
    grown = torch.where(is_due & torch.isfinite(larger), larger, scale)
    again = torch.where(is_bad | is_due, torch.zeros_like(successes), successes)
    scale.copy_(torch.where(is_bad, smaller, grown))
    growth_tracker.copy_(again)
    return scale
