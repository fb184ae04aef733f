"""What stands beside a graph, as JSON: inputs, outputs, mutations, and what each input was."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from plait_fx_passes import plain_data
from plait_fx_passes.errors import GraphTextError
from plait_fx_passes.training.costs import Cost, Kind
from plait_fx_passes.training.saved import Held, SavedTensor
from plait_utils import dataclass


class Codec(plain_data.Codec):
    """From values to JSON and back, those of partitions too."""

    classes: ClassVar[Mapping[str, type[Any]]] = {
        **plain_data.CLASSES,
        **{each.__name__: each for each in (SavedTensor, Cost)},
    }
    enums: ClassVar[Mapping[str, type[enum.Enum]]] = {
        **plain_data.ENUMS,
        **{each.__name__: each for each in (Held, Kind)},
    }


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What an input was: where it lies, and between which values.

    ``size``, ``stride`` and ``offset`` count elements; ``low`` and ``high`` are None for inputs
    of which no values were seen. Sizes that are symbolic are text.
    """

    name: str
    dtype: torch.dtype
    size: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    offset: int | str
    device: str
    requires_grad: bool
    low: float | None = None
    high: float | None = None

    @property
    def is_static(self) -> bool:
        """Whether all sizes are numbers."""
        return all(isinstance(each, int) for each in (*self.size, *self.stride, self.offset))

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        found |= {"dtype": str(self.dtype).removeprefix("torch.")}
        return {**found, "size": list(self.size), "stride": list(self.stride)}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> InputFacts:
        """The facts. Raises GraphTextError for a dtype that torch does not have."""
        dtype = getattr(torch, str(found["dtype"]), None)
        if not isinstance(dtype, torch.dtype):
            raise GraphTextError(f"there is no dtype {found['dtype']!r}")
        sizes = {"size": tuple(found["size"]), "stride": tuple(found["stride"])}
        return cls(**{**found, **sizes, "dtype": dtype})

    def make(self, generator: torch.Generator) -> torch.Tensor:
        """A tensor like the input, with random values between its bounds (-1 to 1 if unknown).

        Raises:
            GraphTextError: its sizes are symbolic.
        """
        made = self.empty()
        low = -1.0 if self.low is None else self.low
        high = 1.0 if self.high is None else self.high
        with torch.no_grad():
            if self.dtype is torch.bool:
                made.copy_(torch.rand(made.shape, generator=generator) < 0.5)
            elif self.dtype.is_floating_point or self.dtype.is_complex:
                values = torch.rand(made.shape, generator=generator, dtype=torch.float64)
                made.copy_(values * (high - low) + low)
            else:
                last = int(high) if self.high is not None else 1
                first = int(low) if self.low is not None else 0
                made.copy_(torch.randint(first, last + 1, made.shape, generator=generator))
        return made.requires_grad_(self.requires_grad)

    def empty(self) -> torch.Tensor:
        """A tensor that lies in memory as the input does, without values."""
        if not self.is_static:
            raise GraphTextError(f"the sizes of {self.name} are symbolic")
        size, stride = [int(each) for each in self.size], [int(each) for each in self.stride]
        reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1
        numel = int(self.offset) + (reach if 0 not in size else 0)
        flat = torch.zeros(numel, dtype=self.dtype, device=self.device)
        return flat.as_strided(size, stride, int(self.offset))


def facts_of(
    names: Sequence[str], values: Sequence[object], examples: Sequence[object]
) -> list[InputFacts]:
    """The facts of tensors; ``examples`` are real ones, of which values are seen, or nothing."""
    seen = [*examples, *[None] * (len(names) - len(examples))]
    return [
        _facts(name, real if isinstance(real, torch.Tensor) else value, real)
        for name, value, real in zip(names, values, seen, strict=True)
        if isinstance(value, torch.Tensor) or isinstance(real, torch.Tensor)
    ]


def _facts(name: str, value: object, real: object) -> InputFacts:
    assert isinstance(value, torch.Tensor)
    low, high = _bounds(real)
    return InputFacts(
        name=name,
        dtype=value.dtype,
        size=tuple(map(_number, value.shape)),
        stride=tuple(map(_number, value.stride())),
        offset=_number(value.storage_offset()),
        device=str(value.device),
        requires_grad=value.requires_grad,
        low=low,
        high=high,
    )


def _number(size: object) -> int | str:
    return size if isinstance(size, int) else str(size)


def _bounds(real: object) -> tuple[float | None, float | None]:
    """The least and the greatest finite value."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(real, torch.Tensor) or isinstance(real, FakeTensor) or not real.numel():
        return None, None
    if real.dtype.is_complex or real.dtype is torch.bool or real.device.type == "meta":
        return None, None
    found = real.detach().to(torch.float64 if real.dtype.is_floating_point else torch.int64)
    finite = found[torch.isfinite(found)]
    if not finite.numel():
        return None, None
    low, high = finite.min().item(), finite.max().item()
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
