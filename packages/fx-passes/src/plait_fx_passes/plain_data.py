"""What stands beside a graph as JSON, and back: inputs, outputs, mutations, gradients."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch._ops import OpOverload

from plait_fx_passes import aten_graph
from plait_fx_passes.errors import GraphTextError
from plait_fx_passes.training.flow import Flow, Step
from plait_fx_passes.training.passed import Passed
from plait_fx_passes.training.places import SavedInput, SavedResult, SavedSize

CLASSES: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        *(aten_graph.UserInput, aten_graph.AttributeInput, aten_graph.ConstantInput),
        *(aten_graph.SyntheticBase, aten_graph.ViewStep, aten_graph.Geometry),
        *(aten_graph.Computed, aten_graph.InputItself, aten_graph.InputView),
        *(aten_graph.ResultView, aten_graph.Literal, aten_graph.Repeated),
        aten_graph.WithinOutput,
        *(aten_graph.Mutation, aten_graph.MetadataMutation),
        *(Flow, Step, Passed, SavedInput, SavedResult, SavedSize),
    )
}
ENUMS: dict[str, type[enum.Enum]] = {
    each.__name__: each for each in (aten_graph.Detached, aten_graph.Followed)
}
SURROUNDINGS = (
    *("inputs", "outputs", "mutations", "metadata_mutations", "counted", "shared_inputs"),
    *("spent", "made_leaves", "adrift", "differentiates"),
)
"""The fields of an ATen graph that say what is around it, but for its output's structure."""


class Codec:
    """From values to JSON and back; tensors are kept apart, in ``constants``."""

    classes: ClassVar[Mapping[str, type[Any]]] = CLASSES
    enums: ClassVar[Mapping[str, type[enum.Enum]]] = ENUMS

    def __init__(self, constants: dict[str, torch.Tensor]) -> None:
        self.constants = constants

    def encode(self, value: object) -> Any:
        """JSON for a value. Raises GraphTextError for what has none."""
        if isinstance(value, torch.Tensor):
            key = f"constant_{len(self.constants)}"
            self.constants[key] = value.detach()
            is_parameter = isinstance(value, torch.nn.Parameter)
            return {"tensor": key, "grad": value.requires_grad, "parameter": is_parameter}
        if isinstance(value, enum.Enum) and type(value).__name__ in self.enums:
            return {"enum": type(value).__name__, "member": value.value}
        if dataclasses.is_dataclass(value) and type(value).__name__ in self.classes:
            fields = {
                f.name: self.encode(getattr(value, f.name)) for f in dataclasses.fields(value)
            }
            return {"is": type(value).__name__, **fields}
        if isinstance(value, OpOverload):
            from plait_fx_passes.tools.text import name_of

            return {"operator": name_of(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, frozenset):
            return {"set": sorted(value)}
        if isinstance(value, tuple):
            return {"tuple": [self.encode(each) for each in value]}
        if isinstance(value, list):
            return [self.encode(each) for each in value]
        if value is None or isinstance(value, (bool, int, str)):
            return value
        from plait_fx_passes.tools.text import write_value

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
            case {"enum": str(name), "member": str(member)} if name in self.enums:
                return self.enums[name](member)
            case {"is": str(name), **fields} if name in self.classes:
                values = {str(field): self.decode(each) for field, each in fields.items()}
                return self.classes[name](**values)
            case {"operator": str(name)}:
                from plait_fx_passes.tools.text import function_named

                return function_named(name)
            case {"dtype": str(name)} if isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
            case {"set": list(members)}:
                return frozenset(members)
            case {"tuple": list(members)}:
                return tuple([self.decode(each) for each in members])
            case {"value": str(text)}:
                from plait_fx_passes.tools.text import read_value

                return read_value(text)
        raise GraphTextError(f"this JSON is nothing of a graph: {str(found)[:80]}")
