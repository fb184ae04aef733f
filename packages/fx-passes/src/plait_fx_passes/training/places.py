"""Where inputs and results of a program stand, that its backward gets or autograd watches."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class SavedInput:
    """The backward gets the tensor that was fed to placeholder ``input`` of the forward."""

    input: int


@dataclass(frozen=True, slots=True)
class SavedResult:
    """The backward gets result ``result`` of the forward."""

    result: int


@dataclass(frozen=True, slots=True)
class SavedSize:
    """The backward gets a tensor of one element, expanded to size ``dim`` of what was fed to
    placeholder ``input`` of the forward, for that size alone."""

    input: int
    dim: int


Saved: TypeAlias = SavedInput | SavedResult | SavedSize


class Place(NamedTuple):
    """An input or a result by its position, the tangents of which gradients count, and the user's
    line that reads or computes it."""

    position: int
    tangents: frozenset[int]
    line: str


Places: TypeAlias = tuple[Place, ...]
