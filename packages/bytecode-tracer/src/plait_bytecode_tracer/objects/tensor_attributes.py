"""Attributes of tensors, and of what else the graph holds."""

from __future__ import annotations

import types
from typing import cast

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.objects.statics import MISSING, guard_class, is_python, static_attribute
from plait_bytecode_tracer.objects.wrapper_attributes import NOT_OWN, wrapper_attribute
from plait_bytecode_tracer.outside.tensors import guard_requires_grad, input_tensor
from plait_bytecode_tracer.shapes.attributes import symbolic_attribute
from plait_bytecode_tracer.tensors.function_modes import through_mode
from plait_bytecode_tracer.tensors.gradients import gradient, gradient_function, is_leaf
from plait_bytecode_tracer.tensors.patches import is_own
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    MethodVariable,
    OpaqueVariable,
    TensorVariable,
    Variable,
)

_TENSOR_CONSTANTS = frozenset(
    {
        *("shape", "dtype", "device", "ndim", "is_cuda", "is_cpu", "is_meta", "layout"),
        *("is_sparse", "is_quantized", "itemsize", "nbytes", "is_nested", "is_mps", "is_xpu"),
    }
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OF_LAYOUT = ("layout", "is_sparse")
_TENSOR_TENSORS = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


def opaque_attribute(owner: OpaqueVariable, name: str) -> Variable | None:
    """What tells what a function or handle of the graph is."""
    if name in ("__dict__", "__annotations__") and callable(owner.fake):
        return DictVariable({})
    value = getattr(owner.fake, name, MISSING)
    if value is MISSING:
        return None
    if name.startswith("__") and is_constant(value):
        return constant(value)
    raise TraceBreakError("GB0007", f"the attribute {name!r} of a {type(owner.fake).__name__}")


def tensor_attribute(frame: Frame, owner: TensorVariable, name: str) -> Variable | None:
    """An attribute of a tensor: a constant, a node, or what the trace has set."""
    if owner.attributes is not None and name in owner.attributes:
        return owner.attributes[name]
    if frame.state.ambient.intercepts and name != "__class__":
        intercepted = _intercepted_attribute(frame, owner, name)
        if intercepted is not None:
            return intercepted
    if owner.cls not in _PLAIN:
        found = wrapper_attribute(frame, owner, name)
        if found is not NOT_OWN:
            return cast("Variable | None", found)
    elif name != "__class__":
        guard_class(frame, owner.cls, name)
    if not is_own(static := static_attribute(owner.cls, name)):
        if is_python(static):
            return BoundVariable(constant(static), owner)
        raise TraceBreakError("GB0007", f"{owner.cls.__name__}.{name}, which is not torch's own")
    if name in _TENSOR_CONSTANTS:
        if owner.fake._has_symbolic_sizes_strides and name in ("shape", "nbytes"):
            return symbolic_attribute(frame, owner, name)
        if name in _OF_LAYOUT and frame.state.ambient.is_undecided:
            raise TraceBreakError("GB0007", f"the attribute {name!r} of a gradient of any layout")
        return constant(getattr(owner.fake, name))
    if name in _TENSOR_TENSORS:
        node, result = frame.state.emit("call_function", getattr, [owner, constant(name)], {})
        if result is owner.fake:  # `real` of real numbers
            return owner
        return frame.state.tensor_result(node, result)
    if name == "requires_grad":
        guard_requires_grad(frame.state)
        return constant(owner.fake.requires_grad)
    if name == "is_leaf":
        return constant(is_leaf(frame.state, owner))
    if name == "grad":
        return gradient(frame, owner)
    if name == "grad_fn":
        return gradient_function(frame, owner)
    if name == "__class__":
        return constant(type_of(owner))
    if name in ("_base", "__dict__"):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a tensor")
    if is_defined(torch.Tensor, name):
        if callable(getattr(torch.Tensor, name)):
            return MethodVariable(owner, name)
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a tensor")
    if owner.source is not None:
        real = input_tensor(frame.state, owner)
        if name in real.__dict__:
            return frame.state.wrap(real.__dict__[name], owner.source.attribute(name))
        if hasattr(real, name):
            raise TraceBreakError("GB0007", f"the attribute {name!r} set on a tensor")
        text = f"no attribute {name}"
        frame.state.require(owner.source, Kind.NO_ATTRIBUTE, name, text)
    return None


def _intercepted_attribute(frame: Frame, owner: TensorVariable, name: str) -> Variable | None:
    """What a torch function mode makes of reading an attribute that C computes."""
    if not isinstance(static_attribute(owner.cls, name), types.GetSetDescriptorType):
        return None
    return through_mode(frame, lambda tensor: getattr(tensor, name), [owner], {})


def store_on_tensor(frame: Frame, owner: TensorVariable, name: str, value: Variable) -> None:
    """`tensor.name = value`, for a name that tensors do not define."""
    if owner.cls not in _PLAIN or is_defined(owner.cls, name) or not name.isidentifier():
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of a tensor")
    if owner.attributes is None:
        owner.attributes = {}
        frame.state.world.marked_tensors.append(owner)
    owner.attributes[name] = value
