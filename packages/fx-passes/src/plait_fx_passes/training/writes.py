"""Inputs that a program writes to, and of which autograd has then saved what was written.

A compiled program keeps what its backward needs apart from them. In eager it is the input itself
that is saved, so that a backward raises where the input was changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from plait_fx_passes.runtime import Note
from plait_fx_passes.training.freeing import check_versions, version_of
from plait_fx_passes.training.joint_graph import JointGraph

Written: TypeAlias = "tuple[tuple[torch.Tensor, int, frozenset[int]], ...]"
"""Tensors over the memory of inputs, their versions, and the tangents of which gradients count."""


def noting_writes(joint: JointGraph) -> Note | None:
    """What tells the node of a program which inputs it has written to; None where there are none
    that matter."""
    written = joint.written
    if not written:
        return None

    def note(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        node = next((each.grad_fn for each in results if each.grad_fn is not None), None)
        if node is not None:
            kept = [(inputs[index].detach(), tangents) for index, tangents in written]
            found = tuple((each, version_of(each), tangents) for each, tangents in kept)
            setattr(node, "written", found)  # noqa: B010  # for mypy

    return note


def check_writes(written: Written, pattern: Sequence[bool]) -> None:
    """Raise autograd's RuntimeError where one of these was changed since, and gradients that are
    given need it."""
    for tensor, version, tangents in written:
        if any(pattern[n] for n in tangents):
            check_versions([tensor], [version])
