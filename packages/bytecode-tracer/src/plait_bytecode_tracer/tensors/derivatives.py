"""What a trace does to the gradients of the caller's tensors."""

from __future__ import annotations

from dataclasses import field

from torch import fx

from plait_bytecode_tracer.values.variables import (
    CellVariable,
    HookHandle,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass


@dataclass(slots=True)
class Derivatives:
    """Gradients, hooks and whether tensors need gradients, as the trace changes them."""

    requiring: list[TensorVariable] = field(default_factory=list)
    """Tensors that are to require gradients, once the graph has made them without any."""
    required: dict[fx.Node, tuple[TensorVariable, bool]] = field(default_factory=dict)
    """Inputs of which the call sets whether they need gradients, before the graph."""
    hooks: list[HookHandle] = field(default_factory=list)
    """Hooks on tensors of the caller's, which they get after the graph."""
    late: list[tuple[CellVariable, Variable | None]] = field(default_factory=list)
    """The variables that hooks in the graph would see change, with what they hold."""
    gradients: dict[int, Variable] = field(default_factory=dict)
    """The gradients of leaves that the call has made, by the ids of their fake tensors."""
    retained: dict[int, TensorVariable] = field(default_factory=dict)
    """Tensors that keep their gradients though they are no leaves, by the ids of their fakes."""
    repointed: dict[int, TensorVariable] = field(default_factory=dict)
    """Tensors of the caller's whose data the call has set, by the ids of their fakes."""
    reads: int = 0
    """How often the trace has read the gradient of a tensor."""
    known_leaves: set[int] = field(default_factory=set)
    """The ids of tensors from outside that are guarded to be leaves, all in one guard."""
    without_gradient: set[int] = field(default_factory=set)
    """The ids of leaves from outside that are guarded to have no gradient before the call."""

    def clear(self) -> None:
        """Let go of the call's tensors."""
        for table in (self.requiring, self.required, self.hooks, self.late, self.gradients):
            table.clear()
        self.retained.clear()
        self.repointed.clear()
