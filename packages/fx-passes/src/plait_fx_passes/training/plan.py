"""What runs around a compiled forward and backward has to know of them, as data.

The graphs themselves are asked for what is rare alone: gradients that are differentiated, and
backwards for choices of gradients that did not occur before. So a process that has these facts, and
the compiled code, does without the graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.training.flow import Flow
from plait_fx_passes.training.passed import Passed
from plait_fx_passes.training.places import Places, Saved
from plait_fx_passes.training.tangents import Tangent
from plait_utils import dataclass

if TYPE_CHECKING:
    from torch import fx

    from plait_fx_passes.training.joint_graph import JointGraph
    from plait_fx_passes.training.partition import Partition

Autocast: TypeAlias = "tuple[tuple[str, torch.dtype], ...]"
"""The devices for which autocast is on, each with its dtype."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A joint graph and its partition, as far as each call needs them.

    Of the graph of ``program`` only the numbers of placeholders and results count, and the sizes of
    the former where they are symbolic; ``result_count``, ``tangents``, ``gradients``, ``random``,
    ``flow``, ``begins_without_gradients``, ``tells_apart``, ``passed`` and ``is_hidden`` are those
    of the joint graph, ``saved`` that of the partition.
    """

    program: AtenGraph
    result_count: int
    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]
    random: bool
    flow: Flow
    begins_without_gradients: bool
    tells_apart: bool
    passed: tuple[Passed, ...]
    is_hidden: bool
    saved: tuple[Saved, ...]
    forward_count: int
    """How many results the forward has, those that only the backward needs among them."""
    backward_count: int
    """How many gradients the whole backward computes."""
    used: frozenset[int]
    """The inputs, by placeholder, whose values gradients of any order depend on."""
    unsaved: tuple[int, ...]
    """Those that it only reads, that get gradients, and of which autograd would save no values."""
    looked_at: tuple[tuple[int, bool], ...]
    """Those of which the backward gets a view, which goes on looking at the memory that they leave
    where their ``.data`` is set; and whether eager's needs the input itself, too."""
    unclear: tuple[int, ...]
    """Those of them of which eager has saved views and the input itself: which of its steps needs
    which of the two, nobody knows here."""
    open_inputs: tuple[int, ...]
    """The inputs with symbolic sizes that are not ``used``."""
    unwritten: Places
    """The inputs that autograd has saved, the backward does without, and nobody writes to."""
    written: Places
    """Those of them that the program writes to."""
    results: Places
    """The results that autograd has saved, and the backward does not get."""
    lines: tuple[str, ...]
    """Of each saved tensor, the user's line that an error for it names."""
    scratch: frozenset[int]
    """Positions of saved tensors that only the backward sees, and that are large."""
    shapes: tuple[Tangent, ...]
    """What the backward expects as tangents."""
    communicates: bool
    """Whether the backward calls collectives."""
    apart: tuple[int, ...]
    """The inputs that no gradient reaches, and that may have a history."""
    autocast: Autocast
    """What autocast was when the program was compiled."""

    @property
    def input_count(self) -> int:
        """How many placeholders the program has, without tangents."""
        return len(self.program.inputs)

    @property
    def copied(self) -> tuple[int, ...]:
        """The inputs that are written to, though gradients depend on what they were."""
        return tuple(sorted(self.used & {each.input for each in self.program.mutations}))

    @property
    def kept(self) -> tuple[int, ...]:
        """The other inputs whose values gradients depend on; all others need not stay alive."""
        return tuple(sorted(self.used - {each.input for each in self.program.mutations}))


class Graphs(NamedTuple):
    """A joint graph, its partition, and the torch-level program that it is of."""

    joint: JointGraph
    parts: Partition
    program: fx.GraphModule


GetGraphs: TypeAlias = Callable[[], Graphs]
"""Called for what is rare."""
