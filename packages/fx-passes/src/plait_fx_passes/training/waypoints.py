"""Inputs that a program writes to, where gradients of results come through what it wrote.

In eager such an input lies on the way: its gradient, asked after the call, includes what comes from
results that were computed from its new value, and hooks on it see and change that. A compiled
program is one node of autograd, whose results lie side by side, so one like that is taken apart
after the write (:func:`plait_fx_passes.in_pieces`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.training.flow import results_above


class WaypointError(AtenTraceError):
    """Ways of gradients meet within the program.

    They come through what it writes to its ``inputs``, which are placeholders by position; or at
    hooks and functions of its own that do more with gradients than weigh them, which its ``nodes``
    bring, by name. Or some of its ``nodes`` cannot be compiled with their gradients, as ``reason``
    says.
    """

    def __init__(
        self,
        inputs: Collection[int] = (),
        nodes: Collection[str] = (),
        where: str | None = None,
        reason: str = "a hook or function of its own does more with gradients than weigh them",
    ) -> None:
        super().__init__(
            "gradients of its results come through what it writes to an input"
            if inputs
            else reason,
            where=where,
            hint="compile the pieces that in_pieces makes of it",
        )
        self.inputs = frozenset(inputs)
        self.nodes = frozenset(nodes)


def refuse_waypoints(results: Mapping[int, torch.Tensor], written: Mapping[int, int]) -> None:
    """Raise WaypointError where ways of gradients lead from results through written inputs.

    Args:
        results: those that get gradients, by position.
        written: the inputs that some of these are written to, by the position of the result.
    """
    if not results.keys() & written.keys() or len(results) < 2:
        return
    found = zip(results, results_above(list(results.values())), strict=True)
    inputs = {written[position] for position, above in found if above and position in written}
    if inputs:
        raise WaypointError(inputs)
