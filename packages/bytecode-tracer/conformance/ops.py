"""Custom operators that cases call; here because an operator is registered once."""

from __future__ import annotations

import torch


@torch.library.custom_op("conformance::shifted", mutates_args=())
def shifted(x: torch.Tensor, by: float) -> torch.Tensor:
    return x + by


@shifted.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("conformance::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    return x * x.numel()


@torch.library.custom_op("conformance::doubled_", mutates_args=("x",))
def doubled_(x: torch.Tensor) -> None:
    x.mul_(2)


@doubled_.register_fake
def _(x: torch.Tensor) -> None:
    return None


@torch.compiler.disable
def left_out(x: torch.Tensor) -> torch.Tensor:
    return x * 2
