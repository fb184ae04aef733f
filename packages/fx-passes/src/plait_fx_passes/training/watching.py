"""Inputs and results that autograd has saved, and that a compiled backward does without.

What the backward needs of them is kept apart, or it needs no more than their sizes. In eager a
backward raises where one of them was changed since, by the program's caller or after a break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import ReferenceType, ref

import torch

from plait_fx_passes.runtime import Note
from plait_fx_passes.training.freeing import check_version, version_of
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.lines import line_of
from plait_fx_passes.training.partition import Partition, SavedInput, SavedResult

_DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
_NO: frozenset[int] = frozenset()


class Place(NamedTuple):
    """An input or a result by its position, the tangents of which gradients count, and the user's
    line that reads or computes it."""

    position: int
    tangents: frozenset[int]
    line: str


Places: TypeAlias = tuple[Place, ...]
Watched: TypeAlias = "tuple[tuple[ReferenceType[torch.Tensor], int, bool, Place], ...]"
"""Inputs and results, which are not kept alive, their versions, and whether they may be detached
from a history."""


def watched_inputs(joint: JointGraph, parts: Partition) -> tuple[Places, Places]:
    """Those that the program does not write to, and those that it does."""
    written = {each.input for each in joint.program.mutations}
    placeholders = joint.graph.find_nodes(op="placeholder")
    read = dict(joint.read)
    held = {each.input for each in parts.saved if isinstance(each, SavedInput)}
    left = [
        Place(index, tangents, line_of(placeholders[index]))
        for index, tangents in joint.saved
        if index not in held or not tangents <= read.get(index, _NO)
    ]
    return (
        tuple(each for each in left if each.position not in written),
        tuple(each for each in left if each.position in written),
    )


def watched_results(joint: JointGraph, parts: Partition) -> Places:
    """The results of the program that autograd has saved, and the backward does not get."""
    held = {each.result for each in parts.saved if isinstance(each, SavedResult)}
    results = joint.program.results
    return tuple(
        Place(index, tangents, line_of(results[index]))
        for index, tangents in joint.saved_results or ()
        if index not in held
    )


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


def saved_and_followed(joint: JointGraph, parts: Partition) -> tuple[tuple[int, int], ...]:
    """Which of the saved tensors are inputs that get gradients: places and placeholders."""
    return tuple(
        (place, each.input)
        for place, each in enumerate(parts.saved)
        if isinstance(each, SavedInput) and joint.gradients[each.input] is not None
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
