"""Attributes and methods of wrapper subclasses, and new ones that traced code makes."""

from __future__ import annotations

from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.objects import bind_attribute
from plait_bytecode_tracer.objects.statics import MISSING, guard_class, static_attribute
from plait_bytecode_tracer.tensors.resizing import RESIZING, TURNING
from plait_bytecode_tracer.tensors.wrappers import require_code
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.variables import Known, TensorVariable, Variable

_UNTRACED = frozenset(
    {
        *("item", "tolist", "numpy", "backward", "requires_grad_", "register_hook", "retain_grad"),
        *("register_post_accumulate_grad_hook", "as_subclass", "storage_offset", "is_shared"),
        *("detach_", "data_ptr", "share_memory_", "storage", "untyped_storage"),
        *(*TURNING, *RESIZING),
        *("__array__", "__reduce__", "__reduce_ex__", "__deepcopy__", "pin_memory", "__dlpack__"),
        *("__tensor_flatten__", "nonzero", "__bool__", "__float__", "__int__", "__index__"),
    }
)
"""Methods that read values or change more than what a wrapper holds."""

NOT_OWN = object()
"""That an attribute is one that all tensors have."""


def wrapper_attribute(frame: Frame, owner: TensorVariable, name: str) -> Any:
    """What a wrapper or its class has under a name; NOT_OWN for what torch defines.

    None where it does not exist.
    """
    if name == "__class__":
        return constant(owner.cls)
    guard_class(frame, owner.cls, name)
    static = static_attribute(owner.cls, name)
    held = vars(owner.fake)
    if name in held and not isinstance(static, property):
        return _held(frame, owner, name)
    if static is MISSING:
        if static_attribute(owner.cls, "__getattr__") is not MISSING:
            raise TraceBreakError("GB0007", f"__getattr__ of {owner.cls.__name__}")
        return None
    if static is static_attribute(torch.Tensor, name):
        if name in _UNTRACED or name in ("_base", "__dict__", "grad_fn"):
            text = f"the attribute {name!r} of a {owner.cls.__name__}, a tensor subclass"
            raise TraceBreakError("GB0007", text)
        return NOT_OWN
    return bind_attribute(frame, owner, owner.cls, name, static)


def _held(frame: Frame, owner: TensorVariable, name: str) -> Variable:
    """What the instance holds: a tensor in the graph, or what says the rest."""
    value = vars(owner.fake)[name]
    if isinstance(value, torch.Tensor):
        known = frame.state.inner.get((owner.node, name))
        if known is None or known.fake is not value:
            node, found = frame.state.emit("call_function", getattr, [owner, constant(name)], {})
            made = frame.state.tensor_result(node, found)
            assert isinstance(made, TensorVariable)
            known = frame.state.inner[owner.node, name] = made
        return known
    if owner.source is not None and owner.original is not None:
        return frame.state.wrap(vars(owner.original)[name], owner.source.attribute(name))
    if not is_constant(value):
        text = f"the attribute {name!r} of a {owner.cls.__name__} that the call makes"
        raise TraceBreakError("GB0007", text)
    return constant(value)


def new_wrapper(
    frame: Frame, function: Known, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`cls(...)` of a wrapper class: one node."""
    cls = function.value
    if frame.state.symbols is not None:
        raise TraceBreakError("GB0009", f"a new {cls.__name__}, beside symbolic sizes")
    require_code(frame.state, cls)
    node, made = frame.state.emit("call_function", cls, args, kwargs)
    if type(made) is not cls or made.requires_grad:
        raise TraceBreakError("GB0009", f"a new {cls.__name__}, which is no plain wrapper")
    return frame.state.tensor_result(node, made)


def is_wrapper_class(cls: type) -> bool:
    """Whether a class is one of wrappers."""
    return (
        issubclass(cls, torch.Tensor)
        and is_defined(cls, "__tensor_flatten__")
        and is_defined(cls, "__tensor_unflatten__")
    )
