"""What the user says of sizes and numbers: that they change, or that they do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plait_utils import dataclass

_ATTRIBUTE = "_plait_sizes"


@dataclass(frozen=True, slots=True)
class Mark:
    """Whether a size or number changes, and between which bounds."""

    changes: bool
    low: int | None = None
    high: int | None = None

    def allows(self, value: int | float) -> bool:
        """Whether a value lies between the bounds."""
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)


def mark_dynamic(
    target: Any, dim: int | str, *, min: int | None = None, max: int | None = None
) -> None:
    """Say that a size changes from call to call: it is symbolic from the next compilation on.

    Args:
        target: a tensor that is passed; or a compiled function, for its arguments that are
            ints or floats.
        dim: the tensor's dimension, or the argument's name.
        min: the least value that the program must take; others compile anew.
        max: the greatest.

    Raises:
        IndexError: for a dimension that the tensor does not have.
        ValueError: where `min` is above `max`.
        TypeError: for a target that is neither.
    """
    if min is not None and max is not None and min > max:
        raise ValueError(f"min={min} is above max={max}")
    _mark(target, dim, Mark(True, min, max))


def mark_static(target: Any, dim: int | str | None = None) -> None:
    """Say that a size, or without `dim` that every size, stays: each value compiles anew.

    Takes what `mark_dynamic` takes.
    """
    if dim is None and isinstance(target, torch.Tensor):
        for each in range(target.dim()):
            _mark(target, each, Mark(False))
        return
    if dim is None:
        raise TypeError("mark_static of a compiled function takes the name of an argument")
    _mark(target, dim, Mark(False))


def _mark(target: Any, dim: int | str, mark: Mark) -> None:
    if isinstance(target, torch.Tensor) and isinstance(dim, int):
        if not -target.dim() <= dim < target.dim():
            raise IndexError(f"a tensor of {target.dim()} dimensions has no dimension {dim}")
        known = getattr(target, _ATTRIBUTE, {})
        setattr(target, _ATTRIBUTE, {**known, dim % target.dim(): mark})
        return
    from plait_bytecode_tracer.modules import compiled_function_of

    function = compiled_function_of(target)
    if function is None or not isinstance(dim, str):
        raise TypeError(
            "a tensor and a dimension, or a compiled function and the name of an argument, "
            f"are marked; not a {type(target).__name__} and a {type(dim).__name__}"
        )
    function.marks[dim] = mark


def marks_of(tensor: torch.Tensor) -> Mapping[int, Mark]:
    """What was said of a tensor's sizes."""
    found: Mapping[int, Mark] = getattr(tensor, _ATTRIBUTE, {})
    return found


__all__ = ["Mark", "mark_dynamic", "mark_static", "marks_of"]
