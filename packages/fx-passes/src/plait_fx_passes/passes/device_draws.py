"""The pass that computes what is drawn on GPUs: most graphs draw nothing, and load no more."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext

aten = torch.ops.aten

DRAWN = frozenset(
    (
        *(aten.native_dropout.default, aten.rand.default, aten.rand_like.default),
        *(aten.uniform.default, aten.bernoulli.p),
    )
)
"""The operators of which the numbers are known."""
DEVICES = ("cuda",)


def device_draws(context: PassContext) -> None:
    """Replace what draws on GPUs, where it is known which numbers it draws."""
    if any(map(_is_drawn_there, context.graph.nodes)):
        from plait_fx_passes.passes.drawn_numbers import compute_draws

        compute_draws(context)


def _is_drawn_there(node: fx.Node) -> bool:
    if node.target not in DRAWN:
        return False
    value: Any = node.meta["val"]
    first: torch.Tensor = value[0] if isinstance(value, (tuple, list)) else value
    return first.device.type in DEVICES


DEVICE_DRAWS = Pass(
    "device-draws",
    device_draws,
    "computes eager's random numbers of a GPU where they are needed",
)
