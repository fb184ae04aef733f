"""Facts of a joint graph and its partition, for what runs around their compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Set

import torch
from torch import fx

from plait_fx_passes.aliasing import is_view
from plait_fx_passes.aten_graph import ConstantInput
from plait_fx_passes.layouts import has_static_sizes
from plait_fx_passes.passes.collectives.calls import communicates
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.known import COMPUTED_FROM
from plait_fx_passes.training.lines import line_of
from plait_fx_passes.training.partition import Partition
from plait_fx_passes.training.places import Place, Places, SavedInput, SavedResult
from plait_fx_passes.training.plan import TrainingPlan
from plait_fx_passes.training.reading import ancestors
from plait_fx_passes.training.scratch import large_and_own
from plait_fx_passes.training.surroundings import autocast_now
from plait_fx_passes.training.tangents import Tangent

_NO: frozenset[int] = frozenset()


def plan_of(joint: JointGraph, parts: Partition) -> TrainingPlan:
    """What is to be known of a partitioned joint graph.

    Raises AtenTraceError where how a result lies in memory does not follow from its sizes.
    """
    used = inputs_of_gradients(joint)
    written = {each.input for each in joint.program.mutations}
    saved_by_autograd = {index for index, _ in joint.saved}
    placeholders = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
    values = [node.meta["val"] for node in placeholders]
    reached = frozenset().union(*joint.flow.reached)
    unwritten, changed = _watched_inputs(joint, parts)
    tangents = parts.backward.placeholders[len(parts.saved) :]
    return TrainingPlan(
        program=joint.program,
        result_count=joint.result_count,
        tangents=joint.tangents,
        gradients=joint.gradients,
        random=joint.random,
        flow=joint.flow,
        begins_without_gradients=joint.begins_without_gradients,
        tells_apart=joint.tells_apart,
        passed=joint.passed,
        is_hidden=joint.is_hidden,
        saved=parts.saved,
        forward_count=len(parts.forward.results),
        backward_count=len(parts.backward.results),
        used=used,
        unsaved=tuple(
            n
            for n in sorted(used - written)
            if n not in saved_by_autograd
            and joint.gradients[n] is not None
            and not placeholders[n].meta.get("is_anchor")  # which nobody can write to
        ),
        looked_at=tuple(each for each in _looked_at(joint, parts) if each[0] in used - written),
        unclear=tuple(n for n, is_saved in joint.looked_at if is_saved),
        open_inputs=tuple(
            n for n, value in enumerate(values) if n not in used and not has_static_sizes(value)
        ),
        unwritten=unwritten,
        written=changed,
        results=_watched_results(joint, parts),
        lines=tuple(_lines(joint, parts)),
        scratch=large_and_own(parts),
        shapes=tuple(Tangent.of(node.meta["val"]) for node in tangents),
        communicates=communicates(parts.backward),
        apart=tuple(
            n for n, value in enumerate(values) if n not in reached and _can_have_history(value)
        ),
        autocast=autocast_now(),
    )


def inputs_of_gradients(joint: JointGraph) -> frozenset[int]:
    """The inputs, by placeholder, whose values gradients of any order depend on."""
    written = {mutation.input for mutation in joint.program.mutations}
    placeholders = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
    read = ancestors(joint.program.results[joint.result_count :])
    # What the joint graph is given besides, the program computes itself.
    known = {node for node in placeholders if COMPUTED_FROM in node.meta}
    read |= {each for node in known & read for each in node.meta[COMPUTED_FROM]}
    read -= known
    # An input that is written to without gradients has no part in the first gradients, but
    # autograd follows what becomes of it in the second.
    return frozenset(
        n
        for n, node in enumerate(placeholders)
        if not isinstance(joint.program.inputs[n], ConstantInput)  # the program has its own
        and (
            joint.tells_apart
            or node in read
            or (n in written and joint.gradients[n] is not None)
            or node.meta.get("is_anchor")  # through it gradients are differentiated
        )
    )


def _looked_at(joint: JointGraph, parts: Partition) -> Iterator[tuple[int, bool]]:
    """The inputs that the backward gets, as far as it needs what they were when the forward ran:
    eager has saved views of them, or what the backward computes again. Where eager has saved an
    input itself, its backward needs what that is, too."""
    views = dict(joint.looked_at)
    forward = {node.name for node in parts.forward.graph.nodes if node.op == "call_function"}
    for place, saved in enumerate(parts.saved):
        if isinstance(saved, SavedInput):
            is_saved = views.get(saved.input, True)
            given = parts.backward.placeholders[place]
            if saved.input in views or _computes_again(given, forward):
                yield saved.input, is_saved


def _computes_again(given: fx.Node, forward: Set[str]) -> bool:
    """Whether a backward computes from what it is given what the forward computes, too."""
    waiting, seen = [given], {given}
    while waiting:
        for user in waiting.pop().users:
            if is_view(user) or "passed" in user.meta:
                waiting += {user} - seen
                seen.add(user)
            elif user.name in forward:
                return True
    return False


def _watched_inputs(joint: JointGraph, parts: Partition) -> tuple[Places, Places]:
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


def _watched_results(joint: JointGraph, parts: Partition) -> Places:
    """The results of the program that autograd has saved, and the backward does not get."""
    held = {each.result for each in parts.saved if isinstance(each, SavedResult)}
    results = joint.program.results
    return tuple(
        Place(index, tangents, line_of(results[index]))
        for index, tangents in joint.saved_results or ()
        if index not in held
    )


def _lines(joint: JointGraph, parts: Partition) -> Iterator[str]:
    nodes = {node.name: node for node in joint.graph.nodes}
    for each in parts.kept:
        yield line_of(nodes[each.name])
    for _ in range(len(parts.saved) - len(parts.kept)):  # sizes
        yield ""


def _can_have_history(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex
