"""Operators that copy what a view shows, in terms of the view."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten

_VIEWS = {
    "alias_copy": aten.alias.default,
    "as_strided_copy": aten.as_strided.default,
    "detach_copy": aten.detach.default,
    "diagonal_copy": aten.diagonal.default,
    "expand_copy": aten.expand.default,
    "permute_copy": aten.permute.default,
    "select_copy.int": aten.select.int,
    "slice_copy.Tensor": aten.slice.Tensor,
    "squeeze_copy": aten.squeeze.default,
    "squeeze_copy.dim": aten.squeeze.dim,
    "squeeze_copy.dims": aten.squeeze.dims,
    "t_copy": aten.t.default,
    "transpose_copy.int": aten.transpose.int,
    "unfold_copy": aten.unfold.default,
    "unsqueeze_copy": aten.unsqueeze.default,
    "view_copy": aten.view.default,
}
_SEVERAL = {
    "split_copy.Tensor": aten.split.Tensor,
    "split_with_sizes_copy": aten.split_with_sizes.default,
    "unbind_copy.int": aten.unbind.int,
}


def _copied(view: OpOverload) -> Rule:
    def rule(x: Tensor, *args: object, **kwargs: object) -> object:
        shown: Tensor = view(x, *args, **kwargs)
        return shown.clone(memory_format=torch.contiguous_format)

    return rule


def _each_copied(view: OpOverload) -> Rule:
    def rule(x: Tensor, *args: object, **kwargs: object) -> object:
        shown: Sequence[Tensor] = view(x, *args, **kwargs)
        return [each.clone(memory_format=torch.contiguous_format) for each in shown]

    return rule


def narrow_copy(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return x.narrow(dim, start, length).clone(memory_format=torch.contiguous_format)


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batch, channels, *rest = x.shape
    shuffled = x.reshape(batch, groups, channels // groups, *rest).transpose(1, 2)
    return shuffled.clone(memory_format=torch.contiguous_format).view(x.shape)


def pixel_unshuffle(x: Tensor, factor: int) -> object:
    *batch, channels, height, width = x.shape
    rows, columns = height // factor, width // factor
    if not x.numel():
        sizes = [*batch, channels * factor**2, rows, columns]
        return aten.full.default(sizes, 0, dtype=x.dtype, device=x.device)
    blocks = x.reshape(-1, channels, rows, factor, columns, factor)
    spread = blocks.permute(0, 1, 3, 5, 2, 4).clone(memory_format=torch.contiguous_format)
    return spread.view(*batch, channels * factor**2, rows, columns)


def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    first, second = dims
    turns = k % 4
    if turns == 1:
        return x.flip([second]).transpose(first, second).clone()
    if turns == 2:
        return x.flip([first, second])
    if turns == 3:
        return x.flip([first]).transpose(first, second).clone()
    return x.clone(memory_format=torch.contiguous_format)


def _overload(name: str) -> OpOverload:
    packet, _, overload = name.partition(".")
    found: OpOverload = getattr(getattr(aten, packet), overload or "default")
    return found


TABLE: dict[OpOverload, Rule] = {
    **{_overload(name): _copied(view) for name, view in _VIEWS.items()},
    **{_overload(name): _each_copied(view) for name, view in _SEVERAL.items()},
    aten.narrow_copy.default: narrow_copy,
    aten.channel_shuffle.default: channel_shuffle,
    aten.native_channel_shuffle.default: channel_shuffle,
    aten.pixel_unshuffle.default: pixel_unshuffle,
    aten.rot90.default: rot90,
}
"""Copies, by their operators."""
