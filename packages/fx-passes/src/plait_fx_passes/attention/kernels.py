"""Which attention a fused kernel takes, and where it gains.

Forward and backward on one H200, milliseconds as products, as a call, and by ``torch.compile``; 2
batches of 16 heads, 4096 queries of 128 elements. In bfloat16 plain 3.3, 1.7 and 1.8; causal 3.3,
1.2 and 4.3; masked 3.5, 3.4 and 4.3; biased 4.1, 3.3 and 5.0. In float32 plain 19.8, 24.9 and 19.8;
causal 19.9, 13.4 and 20.4; masked 20.1, 27.5 and 20.4. On two cores of a CPU loops and products
take 0.7 to 1.0 of a call's time. The former's memory grows with the square of the length: 3232 MB,
225 with a call, in bfloat16.
"""

from __future__ import annotations

import torch

from plait_fx_passes.attention.calls import value_of
from plait_fx_passes.attention.masks import Masks
from plait_fx_passes.attention.reading import Attention, NotAttentionError

HALF = (torch.float16, torch.bfloat16)


def form_of(attention: Attention, masks: Masks) -> str:
    """``plain``, ``causal``, ``masked`` by bools or ``biased`` by what is added."""
    hidden, added = attention.hidden, attention.added
    if not hidden and not added:
        return "plain"
    if len(hidden) + len(added) == 1:
        mask = hidden[0].mask.node if hidden else added[0].node
        known = masks.known(mask, bool(hidden) and hidden[0].where)
        value, scores = value_of(mask), value_of(attention.scores.node)
        assert value is not None
        assert scores is not None
        if known is not None and known.is_causal and value.shape[-2:] == scores.shape[-2:]:
            return "causal"
    return "biased" if added else "masked"


def check_kernel(attention: Attention, form: str, *, everywhere: bool, dropout: bool) -> None:
    """Raise NotAttentionError where the call would be made of the same products, or gain nothing
    but memory."""
    value, queries = value_of(attention.scores.node), value_of(attention.scores.left)
    assert value is not None
    assert queries is not None
    device, dtype = value.device.type, value.dtype
    if device not in ("cpu", "cuda") or (device == "cuda" and dtype == torch.float64):
        raise NotAttentionError(f"there is no kernel for {dtype} on {device}")
    if not everywhere and (device == "cpu" or (dtype not in HALF and form != "causal")):
        raise NotAttentionError(f"a call is not faster, {form} in {dtype} on {device}")
    if attention.dropout and not dropout:
        raise NotAttentionError("its dropout would draw other random numbers than eager's")
    if attention.dropout and device == "cpu":
        raise NotAttentionError("the CPU's kernel has no dropout")
    for each in attention.added:
        added = value_of(each.node)
        assert added is not None
        if added.dtype.itemsize > dtype.itemsize and form == "biased":
            raise NotAttentionError("what is added to its scores has a wider dtype")
        if added.requires_grad and device == "cpu":
            raise NotAttentionError("the CPU's kernel gives no gradient of what is added to scores")
    for _, factor in attention.factors:
        by = value_of(factor.node)
        assert by is not None
        if by.dim() > 0 and by.dtype != queries.dtype:
            raise NotAttentionError("its scores are multiplied in another dtype")
