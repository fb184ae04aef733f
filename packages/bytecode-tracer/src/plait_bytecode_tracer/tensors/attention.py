"""Attention with a score function, as `torch.nn.attention.flex_attention` defines it.

The functions here are traced. Score functions and masks take numbers, that is tensors without
dimensions; `torch.vmap` calls them for all places at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_PLACES = (
    (None, None, None, 0),
    (None, None, 0, None),
    (None, 0, None, None),
    (0, None, None, None),
)
"""The dimensions that one vmap each goes along: keys, queries, heads, batches."""


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_of: Callable[..., Tensor] | None,
    mask_of: Callable[..., Tensor] | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The attention, and for each row the logarithm of its sum and its maximum, to base 2.

    `query` is `[B, H, M, D]`, `key` `[B, Hkv, N, D]`, `value` `[B, Hkv, N, E]`; H is a multiple
    of Hkv, and keys and values of one batch serve all. Rows without a key give zeros.
    """
    working = torch.float64 if query.dtype is torch.float64 else torch.float32
    group = query.size(1) // key.size(1)
    if group != 1:
        key = torch.repeat_interleave(key, group, dim=1)
        value = torch.repeat_interleave(value, group, dim=1)
    batches, of_keys = query.size(0), key.size(0)
    if not (batches == of_keys or (batches > 1 and of_keys == 1)):
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batches} and Bkv={of_keys}")
    key = key.expand((batches, *key.size()[1:]))
    value = value.expand((batches, *value.size()[1:]))
    scores = query.to(working) @ key.to(working).transpose(-2, -1)
    places = [torch.arange(0, size, device=scores.device) for size in scores.shape]
    scores = scores * scale
    changed = scores if score_of is None else _at_all_places(score_of, (0,))(scores, *places)
    if mask_of is not None:
        allowed = _at_all_places(mask_of, ())(*places)
        nothing = torch.full((), -math.inf, dtype=working, device=scores.device)
        changed = torch.where(allowed, changed, nothing)
    sums = changed.logsumexp(dim=-1)
    is_empty = torch.all(changed == -math.inf, dim=-1)
    sums = torch.where(is_empty, -math.inf, sums)
    maxima = torch.max(changed, dim=-1)[0]
    weights = torch._safe_softmax(changed, dim=-1)
    out = weights.to(query.dtype) @ value.to(query.dtype)
    return _strided_as(out, query.stride()), sums / math.log(2), maxima / math.log(2)


def _at_all_places(
    function: Callable[..., Tensor], first: tuple[int, ...]
) -> Callable[..., Tensor]:
    """A function of four positions, after a score where `first` is (0,), for all of them."""
    for place in _PLACES:
        function = torch.vmap(function, in_dims=(*first, *place))
    return function


def _strided_as(out: Tensor, strides: Sequence[int]) -> Tensor:
    """`out` laid out in the order of these strides, but for the last dimension, which is dense."""
    filled = sorted(range(4), key=lambda dim: (strides[dim], -dim))
    if filled[0] != 3:
        filled.remove(3)
        filled.insert(0, 3)
    if filled == [3, 2, 1, 0]:
        return out.contiguous()
    order = filled[::-1]
    return out.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])
