"""The gradients that the autograd nodes of a compiled program hand over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from plait_fx_passes.training.again import Again, Before
from plait_fx_passes.training.backwards import Backwards
from plait_fx_passes.training.freeing import keeps_graph
from plait_fx_passes.training.higher import Higher
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.partition import Partition
from plait_fx_passes.training.spent import USED_UP
from plait_fx_passes.training.watching import check_attached, check_unchanged, saved_and_followed

Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"
Differentiate: TypeAlias = Callable[..., Gradients]

_records = torch.is_grad_enabled
_finds_anomalies = torch.is_anomaly_enabled


def differentiator(
    joint: JointGraph, parts: Partition, backwards: Backwards, again: Again, higher: Higher
) -> Differentiate:
    """What computes the gradient of each input, and of each copy behind them, from the state of a
    call, which is its node or what several share, and the gradients of its results.

    It frees what autograd would. Asked for the gradients of some inputs only, it may leave out
    others; told that its pass is unfinished, it keeps what the rest of that needs.
    """
    freeing, needed = higher.freeing, backwards.needed
    count = joint.input_count + len(again.copied)
    followed = saved_and_followed(joint, parts)

    def differentiate(
        state: Any,
        *tangents: torch.Tensor | None,
        inputs: frozenset[int] | None = None,
        unfinished: bool = False,
    ) -> Gradients:
        pattern = tuple([each is not None for each in tangents])
        if False in pattern and freeing.asks_for_nothing(state, pattern):
            return (None,) * count
        try:
            left = state.left
            held = state.saved_tensors if left is None else freeing.held(state, pattern, needed)
        except RuntimeError as error:
            versions = again.versions(_kept(state), parts.saved)
            held = freeing.held_in_part(state, pattern, needed, versions, error)
        for place, n in followed:
            if not held[place].requires_grad:
                check_attached(state, n, place in needed(pattern))
        if state.watched is not None:
            check_unchanged(state.watched, pattern)
        spent = None if keeps_graph() else freeing.freed_by(state, pattern)
        if _records() or _finds_anomalies():
            found = higher.gradients(state, _kept(state), tangents, held)
        elif joint.tells_apart and not all(pattern):
            found = again.gradients(_kept(state), tangents)
        else:
            if spent is not None and spent == freeing.everything and not unfinished:
                state.before = None  # its memory is free for what the backward makes
            found = backwards.run(held, tangents, pattern, inputs)
        if spent is not None:
            freeing.free(state, held, spent, unfinished=unfinished)
        return found

    return differentiate


def _kept(state: Any) -> Before:
    """What the program was called with. Raises RuntimeError where a backward that freed it has
    begun, and has raised."""
    before: Before | None = state.before
    if before is None:
        raise RuntimeError(USED_UP)
    return before
