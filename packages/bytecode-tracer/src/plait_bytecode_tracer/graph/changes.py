"""Which tensors the graph changes: what their versions tell, and what they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from plait_bytecode_tracer.failing import CHANGES
from plait_bytecode_tracer.values.variables import SequenceVariable, TensorVariable, Variable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

STEP = "step"
"""In the meta of a node: the number of the instruction, of the innermost frame, that added it."""


def mark(state: TraceState, node: fx.Node) -> None:
    """Note where a node comes from, its tensor's version, whether one of those that it is given
    has changed by now, and whether it runs in switched modes."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        state.versions[node] = -1 if value.is_inference() else value._version
    node.meta["source_line"] = state.frames.line()
    if state.frames.files:
        node.meta["source_file"] = state.frames.files[-1]
        node.meta[STEP] = state.frames.running[-1].step
    changed = [given.name for given in node.all_input_nodes if is_changed(state, given)]
    if changed:
        node.meta[CHANGES] = changed
    if state.ambient.values and node.op != "placeholder" and state.ambient.left():
        node.meta["is_switched"] = True


def mark_changed(state: TraceState, args: Sequence[Variable], *, all_of_them: bool = False) -> None:
    """Tensors in lists are written to: that of fake tensors does not change their version.

    `all_of_them` says the same of tensors outside of lists, as operators of gradient scaling do.
    """
    for given in args:
        for item in given.items if isinstance(given, SequenceVariable) else [given] * all_of_them:
            if isinstance(item, TensorVariable):
                state.versions_before.setdefault(item.node, state.versions.get(item.node, -1))
                state.versions[item.node] = -2


def is_changed(state: TraceState, node: fx.Node) -> bool:
    """Whether a tensor's version has grown since its node came."""
    version = state.versions.get(node, -1)
    return version >= 0 and node.meta["val"]._version != version


def changed_inputs(state: TraceState) -> list[int]:
    """The places of the inputs that the graph changes, as far as their versions tell."""
    return [n for n, each in enumerate(state.inputs) if is_changed(state, each.node)]
