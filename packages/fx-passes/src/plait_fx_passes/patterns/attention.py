"""Hand-written attention as one operator.

``softmax(q @ k^T * scale + mask) @ v`` over four-dimensional tensors is recorded as two ``bmm``
between views to three dimensions. The fused CPU kernel computes the same without storing the
matrix of scores. It differs in rounding, and in rows that are masked out completely by ``-inf``,
which are NaN when written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from plait_fx_passes.patterns.expressions import Anything, Scalar
from plait_fx_passes.patterns.matching import Match
from plait_fx_passes.patterns.rewriting import RewriteRule

aten = torch.ops.aten


def _scores(q: Tensor, k_transposed: Tensor, shape: object) -> Tensor:
    scores: Tensor = aten.view.default(aten.bmm.default(q, k_transposed), shape)
    return scores


def _mixed(scores: Tensor, v: Tensor, shape: object, axis: object) -> object:
    weights = aten._softmax.default(scores, axis, False)
    return aten.bmm.default(aten.view.default(weights, shape), v)


def _plain(q: Tensor, k: Tensor, v: Tensor, s: Anything, t: Anything, axis: Scalar) -> object:
    return _mixed(_scores(q, k, s), v, t, axis)


def _multiplied(
    q: Tensor, k: Tensor, v: Tensor, s: Anything, t: Anything, axis: Scalar, scale: Scalar
) -> object:
    return _mixed(aten.mul.Tensor(_scores(q, k, s), scale), v, t, axis)


def _divided(
    q: Tensor, k: Tensor, v: Tensor, s: Anything, t: Anything, axis: Scalar, scale: Scalar
) -> object:
    return _mixed(aten.div.Tensor(_scores(q, k, s), scale), v, t, axis)


def _masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, s: Anything, t: Anything, axis: Scalar
) -> object:
    return _mixed(_scores(q, k, s) + mask, v, t, axis)


def _multiplied_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    s: Anything,
    t: Anything,
    axis: Scalar,
    scale: Scalar,
) -> object:
    return _mixed(aten.mul.Tensor(_scores(q, k, s), scale) + mask, v, t, axis)


def _divided_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    s: Anything,
    t: Anything,
    axis: Scalar,
    scale: Scalar,
) -> object:
    return _mixed(aten.div.Tensor(_scores(q, k, s), scale) + mask, v, t, axis)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, shape: list[int], scale: float, mask: Tensor | None
) -> Tensor:
    batch, heads, rows, columns = shape
    attended = torch.nn.functional.scaled_dot_product_attention(
        q.view(batch, heads, rows, q.shape[-1]),
        k.transpose(1, 2).view(batch, heads, columns, k.shape[1]),
        v.view(batch, heads, columns, v.shape[-1]),
        attn_mask=mask,
        scale=scale,
    )
    return attended.reshape(batch * heads, rows, v.shape[-1])


def _replacement(
    scale_of: Callable[[float], float], *, masked: bool, scaled: bool
) -> Callable[..., object]:
    def plain(
        q: Tensor, k: Tensor, v: Tensor, s: list[int], t: object, axis: int, scale: float = 1.0
    ) -> object:
        return _attend(q, k, v, s, scale_of(scale), None)

    def with_mask(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
        s: list[int],
        t: object,
        axis: int,
        scale: float = 1.0,
    ) -> object:
        return _attend(q, k, v, s, scale_of(scale), mask)

    return with_mask if masked else plain


def _is_attention(match: Match) -> bool:
    """Four-dimensional scores over the last axis, in a dtype and on a device with the kernel."""
    shape = match.bindings["s"]
    axis = match.bindings["axis"]
    q, k, v = match.value("q"), match.value("k"), match.value("v")
    scale = match.bindings.get("scale", 1.0)
    if not isinstance(shape, (list, tuple)) or len(shape) != 4 or axis not in (-1, 3):
        return False
    same_type = q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64)
    if not same_type or q.device.type != "cpu" or scale == 0:
        return False
    # The kernel wants one head size, and a transposed key whose views need no copy.
    if q.shape[-1] != v.shape[-1] or match.result.numel() == 0:
        return False
    return "mask" not in match.bindings or _mask_fits(match.value("mask"), shape, q.dtype)


def _mask_fits(mask: Tensor, shape: list[int] | tuple[int, ...], dtype: torch.dtype) -> bool:
    if mask.dim() > 4 or mask.dtype != dtype:
        return False
    sizes = zip(reversed(mask.shape), reversed(shape), strict=False)
    return all(have in (1, want) for have, want in sizes)


def _identity(scale: float) -> float:
    return float(scale)


def _inverse(scale: float) -> float:
    return 1.0 / scale if scale else math.inf


ATTENTION_RULES: tuple[RewriteRule, ...] = tuple(
    RewriteRule(
        f"attention-{name}",
        pattern,
        _replacement(scale_of, masked="mask" in name, scaled="scale" in name),
        _is_attention,
        doc=f"hand-written attention, {name}, as scaled_dot_product_attention",
    )
    for name, pattern, scale_of in (
        ("plain", _plain, _identity),
        ("scaled", _multiplied, _identity),
        ("divided", _divided, _inverse),
        ("masked", _masked, _identity),
        ("scaled-masked", _multiplied_masked, _identity),
        ("divided-masked", _divided_masked, _inverse),
    )
)
