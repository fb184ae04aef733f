"""Which attention a fused kernel takes, and where it gains.

Forward and backward on one H200, milliseconds as products, as a call, and by ``torch.compile``; 2
batches of 16 heads, 4096 queries of 128 elements. In bfloat16 plain 3.2, 1.7 and 1.8; causal 3.2,
1.2 and 4.2; masked 3.4, 3.4 and 4.2; biased 4.0, 3.3 and 5.0. In float32 plain 19.7, 24.8 and 19.7;
causal 19.8, 13.3 and 20.3; masked 20.0, 27.5 and 20.3; forward alone plain 7.0, 6.1 and 7.1, masked
7.2, 7.5 and 7.5. On two cores of a CPU loops and products take 0.7 to 1.0 of a call's time. Their
memory grows with the square of the length: 3232 MB, 225 with a call, in bfloat16.
"""

from __future__ import annotations

import torch

from plait_fx_passes.attention.calls import value_of
from plait_fx_passes.attention.masks import Masks
from plait_fx_passes.attention.reading import Attention, NotAttentionError

_LOW = 0.99
"""Of a number below -6e4, so much is hundreds above it."""
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
    if hidden and added and not _is_low(attention, masks):
        raise NotAttentionError("what is added may hide more of its scores than what hides them")
    return "biased" if added else "masked"


def _is_low(attention: Attention, masks: Masks) -> bool:
    """Whether scores that are hidden have no weight beside any to which something is added."""
    lowest = [masks.lowest(each.node) for each in attention.added]
    return None not in lowest and sum(filter(None, lowest)) > _LOW * attention.hidden[0].value


def _is_faster(attention: Attention, form: str) -> bool:
    value, result = value_of(attention.scores.node), value_of(attention.output.node)
    assert value is not None
    assert result is not None
    if value.device.type != "cuda":
        return False
    return value.dtype in HALF or form == "causal" or (form == "plain" and not result.requires_grad)


def check_kernel(attention: Attention, form: str, *, everywhere: bool, dropout: bool) -> None:
    """Raise NotAttentionError where the call would be made of the same products, or gain nothing
    but memory."""
    value, queries = value_of(attention.scores.node), value_of(attention.scores.left)
    assert value is not None
    assert queries is not None
    device, dtype = value.device.type, value.dtype
    if device not in ("cpu", "cuda") or (device == "cuda" and dtype == torch.float64):
        raise NotAttentionError(f"there is no kernel for {dtype} on {device}")
    if not everywhere and not _is_faster(attention, form):
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
