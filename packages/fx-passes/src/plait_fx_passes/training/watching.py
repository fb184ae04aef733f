"""Inputs and results that autograd has saved, and that a compiled backward does without.

What the backward needs of them is kept apart, or it needs no more than their sizes. In eager a
backward raises where one of them was changed since, by the program's caller or after a break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from weakref import ReferenceType, ref

import torch

from plait_fx_passes.runtime import Note
from plait_fx_passes.training.freeing import check_version, version_of
from plait_fx_passes.training.places import Place, Places, SavedInput
from plait_fx_passes.training.plan import TrainingPlan

_DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)


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


def saved_and_followed(plan: TrainingPlan) -> tuple[tuple[int, int], ...]:
    """Which of the saved tensors are inputs that get gradients: places and placeholders."""
    return tuple(
        (place, each.input)
        for place, each in enumerate(plan.saved)
        if isinstance(each, SavedInput) and plan.gradients[each.input] is not None
    )


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
