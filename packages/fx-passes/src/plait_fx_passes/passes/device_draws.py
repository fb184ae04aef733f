"""The pass that computes what is drawn on GPUs: most graphs draw nothing, and load no more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext

if TYPE_CHECKING:
    from plait_utils.philox_agreement import Compute

aten = torch.ops.aten

DRAWN = frozenset(
    (
        *(aten.native_dropout.default, aten.rand.default, aten.rand_like.default),
        *(aten.uniform.default, aten.bernoulli.p, aten.exponential.default),
        *(aten.randn.default, aten.randn_like.default, aten.normal_functional.default),
        *(aten.normal.float_float, aten.normal.Tensor_float, aten.log_normal.default),
        *(aten.randint.default, aten.randint.low),
        *(aten.randint_like.default, aten.randint_like.low_dtype),
        *(aten.random.default, aten.random.to, getattr(aten.random, "from")),
    )
)
"""The operators of which the numbers are known."""
DEVICES = ("cuda",)


def device_draws(context: PassContext, compute: Compute | None = None) -> None:
    """Replace what draws on GPUs, where it is known which numbers it draws.

    ``compute`` gives what kernels compute for a GPU: by it what they make of random numbers by the
    GPU's own functions is compared with eager's; without it operators draw that.
    """
    if any(map(_is_drawn_there, context.graph.nodes)):
        from plait_fx_passes.passes.drawn_numbers import compute_draws, known_by

        compute_draws(context, known_by(compute))


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


def drawing_passes(compute: Compute | None) -> tuple[Pass, ...]:
    """For compilers of loops, before passes that leave out copies: eager's random numbers of a GPU,
    computed where they are needed; ``compute`` as in `device_draws`."""

    def rewrite(context: PassContext) -> None:
        device_draws(context, compute)

    return (replace(DEVICE_DRAWS, rewrite=rewrite),)
