"""Gradients of other kinds than were expected: the program runs again, under autograd.

Whoever goes backward from a wrapper may give a gradient of another class, or one that says
something else of itself. What was compiled takes none such; eager does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.training.freeing import check_versions, version_of
from plait_fx_passes.training.surroundings import Autocast, as_before, random_states


class CallAgain:
    """One call of a program, to be made again."""

    def __init__(self, program: fx.GraphModule, autocast: Autocast, given: Sequence[Any]) -> None:
        self._program = program
        self._autocast = autocast
        self._given = given
        self._tensors = [each for each in given if isinstance(each, torch.Tensor)]
        self._versions = list(map(version_of, self._tensors))
        self._states = random_states()
        self.inputs = [each for each in self._tensors if each.requires_grad]
        self._is_changed = False

    def finish(self) -> None:
        """The call is over; it cannot be made again if it has changed what it was given."""
        self._is_changed = list(map(version_of, self._tensors)) != self._versions

    def gradients(self, output: int) -> Callable[[torch.Tensor], Sequence[torch.Tensor | None]]:
        """What makes of a gradient for an output those of the inputs that need some."""

        def run(gradient: torch.Tensor) -> Sequence[torch.Tensor | None]:
            if self._is_changed:
                raise AtenTraceError(
                    "the gradient of a tensor subclass is of another kind than was expected, for a"
                    " program that writes to its inputs",
                    hint="run the function eagerly",
                )
            check_versions(self._tensors, self._versions)
            enabled = torch.is_grad_enabled()
            before = as_before(self._states, self._autocast, draws=True)
            with torch.enable_grad(), before:
                apart = {id(each): _apart(each, enabled) for each in self.inputs}
                results = tree_leaves(
                    self._program(*(apart.get(id(each), each) for each in self._given))
                )
            wanted = [apart[id(each)] for each in self.inputs]
            return torch.autograd.grad(
                [results[output]], wanted, [gradient], allow_unused=True, create_graph=enabled
            )

        return run


def _apart(tensor: torch.Tensor, follow: bool) -> torch.Tensor:
    """The tensor without what led to it, or as a view of its own where gradients are followed."""
    return tensor.view_as(tensor) if follow else tensor.detach().requires_grad_()
