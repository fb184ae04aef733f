"""What the caller holds, inputs and results, and which gradients may read it where it is.

The caller may write to it before they are asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import fx

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import Computed, ResultView
from plait_fx_passes.training.asking import bits_of
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.known import COMPUTED_FROM


def held_by_caller(joint: JointGraph, whole: Mapping[fx.Node, int]) -> set[fx.Node]:
    """Inputs that are not written to, and results that the caller gets."""
    program = joint.program
    written = {mutation.input for mutation in program.mutations}
    inputs = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
    held = {node for n, node in enumerate(inputs) if n not in written}
    given = {o.result for o in program.outputs if isinstance(o, (Computed, ResultView))}
    return held | {root for root, n in whole.items() if n in given}


def readable(joint: JointGraph) -> Mapping[fx.Node, int]:
    """The tangents, as bits, whose gradients may read an input or the memory of a result: in eager
    their backward does so too, or raises where it was written to."""
    everything = bits_of(range(len(joint.tangents)))
    if joint.saved_results is None:
        return defaultdict(lambda: everything)
    placeholders = joint.graph.find_nodes(op="placeholder")
    results = joint.program.results
    found: dict[fx.Node, int] = {}
    for index, tangents in (*joint.read, *joint.saved):
        found[placeholders[index]] = found.get(placeholders[index], 0) | bits_of(tangents)
    for position, tangents in joint.saved_results:
        root = storage_root(results[position])
        if root.op != "placeholder":
            found[root] = found.get(root, 0) | bits_of(tangents)
    # What a program of gradients is given besides, the first backward reads too.
    found |= {node: everything for node in placeholders if COMPUTED_FROM in node.meta}
    return found


def whole_results(joint: JointGraph) -> dict[fx.Node, int]:
    """The values that a result of the program holds whole, with the position of the result.

    A result is the value itself, or as many elements of it in another shape, or with its axes in
    another order.
    """
    found: dict[fx.Node, int] = {}
    for position, node in enumerate(joint.program.results[: joint.result_count]):
        root = storage_root(node)
        value, other = root.meta["val"], node.meta["val"]
        if node is root or _is_reshaped(value, other) or axes_in(other, value):
            found.setdefault(root, position)
    return found


def axes_in(other: torch.Tensor, value: torch.Tensor) -> list[int]:
    """The axes of ``other``, a view of ``value``, in the order in which ``value`` has them; none
    where it is not that, or a size is not known."""
    alike = (
        value.dtype == other.dtype and value.dim() == other.dim() and _bits(value) == _bits(other)
    )
    if not alike or not value.is_contiguous():
        return []
    theirs = list(zip(other.shape, other.stride(), strict=True))
    wanted = list(zip(value.shape, value.stride(), strict=True))
    if not all(isinstance(each, int) for pair in (*theirs, *wanted) for each in pair):
        return []
    if sorted(theirs) != sorted(wanted) or len(set(wanted)) != len(wanted):
        return []
    return [theirs.index(each) for each in wanted]


def _bits(value: torch.Tensor) -> tuple[bool, bool]:
    """Whether its elements are negated, or conjugated, where they are read."""
    return value.is_conj(), value.is_neg()


def _is_reshaped(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether ``other``, a view of ``value``, has all its elements in the same order."""
    return (
        other.dtype == value.dtype
        and other.numel() == value.numel()
        and other.is_contiguous()
        and value.is_contiguous()
        and _bits(other) == _bits(value)
    )
