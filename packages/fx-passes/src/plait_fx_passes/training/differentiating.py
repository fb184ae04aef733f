"""The gradients that the autograd nodes of a compiled program hand over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from plait_fx_passes.training.backwards import Backwards
from plait_fx_passes.training.freeing import Freeing, Pattern, as_noted, keeps_graph
from plait_fx_passes.training.plan import TrainingPlan
from plait_fx_passes.training.remembering import Before, Cuts, Remembering
from plait_fx_passes.training.spent import USED_UP
from plait_fx_passes.training.watching import (
    check_attached,
    check_unchanged,
    refuse_set,
    saved_and_followed,
    saved_views,
    set_since,
)

if TYPE_CHECKING:
    from plait_fx_passes.training.again import Again
    from plait_fx_passes.training.higher import Higher

Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"

_records = torch.is_grad_enabled
_finds_anomalies = torch.is_anomaly_enabled


class Deeper(NamedTuple):
    """Computes gradients that can be differentiated: runs the program anew, or compiled."""

    again: Again
    higher: Higher


class Differentiator:
    """Computes the gradient of each input, and of each copy behind them, from the state of a call,
    which is its node or what several share, and the gradients of its results.

    It frees what autograd would. Asked for the gradients of some inputs only, it may leave out
    others; told that its pass is unfinished, it keeps what the rest of that needs.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        backwards: Backwards,
        remembering: Remembering,
        freeing: Freeing,
        deeper: Callable[[], Deeper],
    ) -> None:
        self._plan = plan
        self._backwards = backwards
        self._remembering = remembering
        self._deeper = deeper
        self._freeing = freeing
        self._communicates = plan.communicates
        self._count = plan.input_count + len(remembering.copied)
        self._followed = saved_and_followed(plan)
        self._views = saved_views(plan, range(plan.input_count))
        self._unclear = saved_views(plan, plan.unclear)
        saved = {n for n, is_saved in plan.looked_at if is_saved}
        self._apart = saved_views(plan, saved.difference(plan.unclear))

    def __call__(
        self,
        state: Any,
        *tangents: torch.Tensor | None,
        inputs: frozenset[int] | None = None,
        unfinished: bool = False,
    ) -> Gradients:
        freeing, needed = self._freeing, self._backwards.needed
        pattern = tuple([each is not None for each in tangents])
        if False in pattern and freeing.asks_for_nothing(state, pattern):
            return (None,) * self._count
        if self._communicates:  # other processes may call no more than autograd does
            asked = freeing.asked(state)
            inputs = asked if inputs is None else asked & inputs
        is_whole, refusal = False, None
        if state.left is None:
            try:
                held = state.saved_tensors
            except RuntimeError as error:
                refusal = self._take(state, error)
            is_whole = state.left is None
        if not is_whole:  # or another thread has come first, by now
            held, inputs = self._held_for(state, pattern, inputs, refusal)
            needed = partial(needed, inputs=inputs)
        for place, own, n, is_view in self._followed:
            tensor = _kept(state).kept[own] if is_view else held[place]
            if not tensor.requires_grad:
                check_attached(state, n, place in needed(pattern))
        if state.watched is not None:
            check_unchanged(state.watched, pattern)
        spent = None if keeps_graph() else freeing.freed_by(state, pattern)
        if _records() or _finds_anomalies():
            refuse_set(self._views, held, _kept(state).kept)
            found = self._deeper().higher.gradients(state, _kept(state), tangents, held)
        elif self._plan.tells_apart and not all(pattern):
            refuse_set(self._views, held, _kept(state).kept)
            found = self._deeper().again.gradients(_kept(state), tangents)
        else:
            apart = None
            if self._unclear:
                refuse_set(self._unclear, held, _kept(state).kept)
            if self._apart:
                apart = set_since(self._apart, held, _kept(state).kept)
            give_up = None
            if spent is not None and spent == freeing.everything and not unfinished:
                state.before = None  # its memory is free for what the backward makes
                if is_whole:
                    give_up = partial(freeing.free, state, held, spent)
            if apart:
                found = self._backwards.run_apart(held, apart, tangents, pattern, inputs)
            else:
                found = self._backwards.run(held, tangents, pattern, inputs, give_up)
        if spent is not None:
            freeing.free(state, held, spent, unfinished=unfinished)
            # autograd does so too, later: but where the last of a tensor goes, torch lets other
            # threads run, and one that has run the node frees all a second time; `held` keeps it
            state.maybe_clear_saved_tensors()
        return found

    def until(
        self,
        state: Any,
        tangents: Sequence[torch.Tensor | None],
        cuts: Cuts,
        stops: frozenset[int],
        *,
        unfinished: bool,
    ) -> Gradients:
        """The same as far as gradients do not come through outputs, and behind them what comes to
        these; ``stops`` are the tangents of the results that these outputs show."""
        pattern = tuple([each is not None for each in tangents])
        spent = self._freeing.freed_before(state, pattern, stops)
        held = self._held(state, pattern)
        refuse_set(self._views, held, _kept(state).kept)
        found = self._deeper().higher.until(_kept(state), tangents, held, cuts)
        if not keeps_graph():
            self._freeing.free(state, held, spent, unfinished=unfinished)
        return found

    def finish(self, state: Any) -> None:
        """The pass of autograd that runs is done with all nodes of a call."""
        self._freeing.finish(state)

    def _held(self, state: Any, pattern: Pattern) -> tuple[torch.Tensor, ...]:
        """What the forward has saved, as far as the backward needs it."""
        refusal = None
        if state.left is None:
            try:
                held: tuple[torch.Tensor, ...] = state.saved_tensors
            except RuntimeError as error:
                refusal = self._take(state, error)
            else:
                if state.left is None:  # no other thread has come first
                    return held
        return self._held_for(state, pattern, None, refusal)[0]

    def _take(self, state: Any, error: RuntimeError) -> RuntimeError:
        """Take what is saved where autograd has raised ``error`` for what may not be needed."""
        versions = self._remembering.versions(_kept(state), self._plan.saved)
        self._freeing.take(state, versions, error)
        return error

    def _held_for(
        self,
        state: Any,
        pattern: Pattern,
        inputs: frozenset[int] | None,
        refusal: RuntimeError | None,
    ) -> tuple[tuple[torch.Tensor, ...], frozenset[int] | None]:
        """What is left of what the forward has saved, and the inputs whose gradients that is enough
        for: of all, or of those that the backward which runs asks for. Raises autograd's own
        ``refusal``, if there is one, where it is not."""
        freeing, needed = self._freeing, self._backwards.needed
        try:
            return freeing.held(state, pattern, partial(needed, inputs=inputs)), inputs
        except RuntimeError as error:
            fewer = freeing.asked(state)
            fewer = fewer if inputs is None else fewer & inputs
            left = state.left.held is not None
            if left and set(needed(pattern, fewer)) < set(needed(pattern, inputs)):
                return freeing.held(state, pattern, partial(needed, inputs=fewer)), fewer
            if refusal is None:
                raise
            raise as_noted(refusal, error) from None


def _kept(state: Any) -> Before:
    """What the program was called with. Raises RuntimeError where a backward that freed it has
    begun, and has raised."""
    before: Before | None = state.before
    if before is None:
        raise RuntimeError(USED_UP)
    return before
