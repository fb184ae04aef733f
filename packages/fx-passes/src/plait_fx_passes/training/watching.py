"""Inputs and results that autograd has saved, and that a compiled backward does without.

What the backward needs of them is kept apart, or it needs no more than their sizes. In eager a
backward raises where one of them was changed since, by the program's caller or after a break.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import ReferenceType, ref

import torch

from plait_fx_passes.runtime import Note
from plait_fx_passes.training.freeing import check_version, version_of
from plait_fx_passes.training.places import Place, Places, SavedInput
from plait_fx_passes.training.plan import TrainingPlan
from plait_fx_passes.training.tangents import is_wrapped

_DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
_SET = (
    "the .data of a tensor was set between a compiled forward and a backward that is "
    "differentiated, or needs what it was and what it is: set it before the forward or after the "
    "backward"
)
_shares_memory: Callable[[torch.Tensor, torch.Tensor], bool]
_shares_memory = torch._C._is_alias_of  # type: ignore[attr-defined]  # in C

Watched: TypeAlias = "tuple[tuple[ReferenceType[torch.Tensor], int, bool, Place], ...]"
"""Inputs and results, which are not kept alive, their versions, and whether they may be detached
from a history."""


def watched(places: Places, inputs: Sequence[torch.Tensor]) -> Watched:
    """These inputs as they are now."""
    return tuple(
        (ref(inputs[n]), version_of(inputs[n]), not inputs[n].is_leaf, place)
        for n, place in ((place.position, place) for place in places)
    )


def watch_results(state: Any, places: Places, results: Sequence[torch.Tensor]) -> None:
    """The node of a program, or what several share, is to look at these results again."""
    seen = [(results[place.position], place) for place in places]
    found = tuple((ref(each), version_of(each), False, place) for each, place in seen)
    state.watched = (*(state.watched or ()), *found)


class SavedHere(NamedTuple):
    """An input that eager has saved: the place of what the backward gets of it, that of the input
    among those that are kept, the placeholder, and whether the backward gets a view of it."""

    place: int
    kept: int
    input: int
    is_view: bool


def saved_and_followed(plan: TrainingPlan) -> tuple[SavedHere, ...]:
    """The inputs that get gradients, and that eager has saved themselves."""
    apart = {index for index, is_saved in plan.looked_at if not is_saved}
    found = _saved_here(plan)
    return tuple(
        each for each in found if plan.gradients[each.input] is not None and each.input not in apart
    )


def saved_views(plan: TrainingPlan, inputs: Collection[int]) -> tuple[SavedHere, ...]:
    """Those of the inputs of which the backward gets views."""
    return tuple(each for each in _saved_here(plan) if each.is_view and each.input in inputs)


def _saved_here(plan: TrainingPlan) -> Iterator[SavedHere]:
    kept = {index: place for place, index in enumerate(plan.kept)}
    views = {index for index, _ in plan.looked_at}
    for place, each in enumerate(plan.saved):
        if isinstance(each, SavedInput):
            index = each.input
            yield SavedHere(place, kept.get(index, -1), index, index in views)


def set_since(
    views: Sequence[SavedHere], held: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """The inputs whose ``.data`` was set since a view of them was saved, by the view's places."""
    return {
        place: kept[index]
        for place, index, _, _ in views
        if not _shares_memory(held[place], kept[index]) and not is_wrapped(held[place])
    }


def refuse_set(
    views: Sequence[SavedHere], held: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]
) -> None:
    """Raise RuntimeError where the ``.data`` of an input was set since a view of it was saved."""
    if set_since(views, held, kept):
        raise RuntimeError(_SET)


def check_attached(state: Any, index: int, is_used: bool) -> None:
    """Raise autograd's RuntimeError where an input that now needs no gradients had a history when
    a node saved it, and ``is_used``. For nodes that are written in Python autograd does not."""
    node = state.next_functions[index][0]
    if is_used and node is not None and not hasattr(node, "variable"):
        raise RuntimeError(_DETACHED)


def noting_writes(places: Places) -> Note | None:
    """What tells the node of a program which inputs it has written to; None for none."""
    if not places:
        return None

    def note(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        node = next((each.grad_fn for each in results if each.grad_fn is not None), None)
        if node is not None:
            holder: Any = getattr(node, "call", node)  # which one of several nodes shares
            holder.watched = (*(holder.watched or ()), *watched(places, inputs))

    return note


def check_unchanged(found: Watched, pattern: Sequence[bool]) -> None:
    """Raise autograd's RuntimeError where one of these was changed or detached since, and gradients
    that are given ask for it."""
    for reference, version, has_history, place in found:
        tensor = reference()
        if tensor is None or not any(pattern[n] for n in place.tangents):
            continue
        check_version(tensor, version, place.line)
        if has_history and tensor.is_leaf:
            raise RuntimeError(_DETACHED)
