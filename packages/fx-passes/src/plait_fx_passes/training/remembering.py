"""What each call of a compiled program keeps, for gradients that may be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

from plait_fx_passes.training.freeing import versions_of
from plait_fx_passes.training.picking import Picker, picker
from plait_fx_passes.training.places import Saved, SavedInput
from plait_fx_passes.training.plan import TrainingPlan
from plait_fx_passes.training.stands import Stands
from plait_fx_passes.training.surroundings import random_states

Geometry: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"


class Before(NamedTuple):
    """What a program was called with, as far as its gradients depend on it: inputs that it does
    not write to, with their versions, copies of others, states of random generators, what
    stands for inputs where autograd may come to know others in their place, and the sizes and
    strides of inputs that differ from call to call."""

    kept: tuple[torch.Tensor, ...]
    copies: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    states: Sequence[torch.Tensor]
    stands: Stands
    geometries: tuple[Geometry, ...] = ()


class Cuts(NamedTuple):
    """Outputs at which gradients end: their places among those that are passed, and the tensors
    that gradients are to flow on from in turn; None for values that are computed again."""

    places: tuple[int, ...]
    tensors: tuple[torch.Tensor | None, ...]

    @property
    def given(self) -> list[torch.Tensor]:
        """The tensors that there are."""
        return [each for each in self.tensors if each is not None]


class Remembering:
    """Keeps what a program is called with."""

    def __init__(self, plan: TrainingPlan) -> None:
        self.copied = plan.copied
        self.kept = plan.kept
        self.unsaved = plan.unsaved
        self._count = plan.input_count
        self._pick_kept: Picker[torch.Tensor] = picker(plan.kept)
        self._open = plan.open_inputs

    def remember(self, given: tuple[torch.Tensor, ...], states: Sequence[torch.Tensor]) -> Before:
        """What the program is called with: its inputs, then copies of those in ``copied``."""
        kept = self._pick_kept(given)
        geometries: tuple[Geometry, ...] = ()
        if self._open:
            geometries = tuple((given[n].shape, given[n].stride()) for n in self._open)
        return Before(kept, given[self._count :], versions_of(kept), states, {}, geometries)

    def versions(self, before: Before, saved: Sequence[Saved]) -> list[int]:
        """How often what was saved for the backward had been changed by then: results are new.
        Of an input that the program itself writes to, no version is right."""
        inputs = dict(zip(self.kept, before.versions, strict=True))
        return [inputs.get(each.input, -2) if isinstance(each, SavedInput) else 0 for each in saved]

    def states(self) -> list[torch.Tensor]:
        """Of the random generators, from which the program draws."""
        return random_states()
