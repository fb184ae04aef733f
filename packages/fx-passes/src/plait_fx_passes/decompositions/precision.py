"""Which dtypes a sequence of operators computes in as one operator does."""

from __future__ import annotations

from functools import wraps

import torch
from torch import Tensor

from plait_fx_passes.record.recorder import Rule


def unrounded(rule: Rule) -> Rule:
    """Declines half precision, where eager computes in float32 and rounds once, and integers."""

    @wraps(rule)
    def checked(x: Tensor, *args: object, **kwargs: object) -> object:
        if x.dtype not in (torch.float32, torch.float64):
            return NotImplemented
        return rule(x, *args, **kwargs)

    return checked
