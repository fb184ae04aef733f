"""What stands beside a graph, as JSON: inputs, outputs, mutations, and what each input was."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from plait_fx_passes import aten_graph
from plait_fx_passes.errors import GraphTextError
from plait_fx_passes.tools.text import function_named, name_of, read_value, write_value
from plait_fx_passes.training.costs import Cost, Kind
from plait_fx_passes.training.flow import Flow, Step
from plait_fx_passes.training.passed import Passed
from plait_fx_passes.training.places import SavedInput, SavedResult, SavedSize
from plait_fx_passes.training.saved import Held, SavedTensor
from plait_utils import dataclass

_CLASSES: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        *(aten_graph.UserInput, aten_graph.AttributeInput, aten_graph.ConstantInput),
        *(aten_graph.SyntheticBase, aten_graph.ViewStep, aten_graph.Geometry),
        *(aten_graph.Computed, aten_graph.InputItself, aten_graph.InputView),
        *(aten_graph.ResultView, aten_graph.Literal, aten_graph.Repeated),
        aten_graph.WithinOutput,
        *(aten_graph.Mutation, aten_graph.MetadataMutation),
        *(Flow, Step, Passed, SavedInput, SavedResult, SavedSize, SavedTensor, Cost),
    )
}
_ENUMS: dict[str, type[enum.Enum]] = {
    each.__name__: each for each in (aten_graph.Detached, aten_graph.Followed, Held, Kind)
}


class Codec:
    """From values to JSON and back; tensors are kept apart, in ``constants``."""

    def __init__(self, constants: dict[str, torch.Tensor]) -> None:
        self.constants = constants

    def encode(self, value: object) -> Any:
        """JSON for a value. Raises GraphTextError for what has none."""
        if isinstance(value, torch.Tensor):
            key = f"constant_{len(self.constants)}"
            self.constants[key] = value.detach()
            is_parameter = isinstance(value, torch.nn.Parameter)
            return {"tensor": key, "grad": value.requires_grad, "parameter": is_parameter}
        if isinstance(value, enum.Enum) and type(value).__name__ in _ENUMS:
            return {"enum": type(value).__name__, "member": value.value}
        if dataclasses.is_dataclass(value) and type(value).__name__ in _CLASSES:
            fields = {
                f.name: self.encode(getattr(value, f.name)) for f in dataclasses.fields(value)
            }
            return {"is": type(value).__name__, **fields}
        if isinstance(value, OpOverload):
            return {"operator": name_of(value)}
        if isinstance(value, frozenset):
            return {"set": sorted(value)}
        if isinstance(value, tuple):
            return {"tuple": [self.encode(each) for each in value]}
        if isinstance(value, list):
            return [self.encode(each) for each in value]
        if value is None or isinstance(value, (bool, int, str)):
            return value
        return {"value": write_value(value)}

    def decode(self, found: Any) -> Any:
        """The value. Raises GraphTextError for JSON that :meth:`encode` does not write."""
        if isinstance(found, list):
            return [self.decode(each) for each in found]
        if not isinstance(found, dict):
            return found
        match found:
            case {"tensor": str(key), "grad": bool(grad), "parameter": bool(is_parameter)}:
                tensor = self.constants[key]
                if is_parameter:
                    return torch.nn.Parameter(tensor, grad)
                return tensor.requires_grad_(grad)
            case {"enum": str(name), "member": str(member)} if name in _ENUMS:
                return _ENUMS[name](member)
            case {"is": str(name), **fields} if name in _CLASSES:
                values = {str(field): self.decode(each) for field, each in fields.items()}
                return _CLASSES[name](**values)
            case {"operator": str(name)}:
                return function_named(name)
            case {"set": list(members)}:
                return frozenset(members)
            case {"tuple": list(members)}:
                return tuple(self.decode(each) for each in members)
            case {"value": str(text)}:
                return read_value(text)
        raise GraphTextError(f"this JSON is nothing of a graph: {str(found)[:80]}")


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
