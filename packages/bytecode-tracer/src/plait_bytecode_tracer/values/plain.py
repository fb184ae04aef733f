"""What objects of the caller's are, past what their own classes would say."""

from __future__ import annotations

import collections
import threading
import types
from enum import Enum
from typing import Any

import torch

from plait_bytecode_tracer.guards import ABSENT, class_attribute
from plait_bytecode_tracer.values.sources import is_written

STORED_KINDS: frozenset[type] = frozenset(
    {list, tuple, dict, set, frozenset, collections.OrderedDict, collections.defaultdict}
)
"""Builtin containers that the trace tracks by their elements."""

VALUE_BASES: tuple[type, ...] = (str, int, float, complex, bytes)
"""Builtin classes of constants, from which classes inherit."""

TUPLE_GETTER = type(vars(collections.namedtuple("_One", "one"))["one"])
"""The class of what finds a field of a named tuple."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes of a module that hold what its call does besides `forward`."""


def plain_of(value: Any, base: Any) -> Any:
    """The string or number inside an instance of a class that inherits from one."""
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes.__getitem__(value, slice(None))[:]
    arithmetic: Any = base.__pos__
    return arithmetic(value)


def is_named_tuple(cls: type) -> bool:
    """Whether instances are tuples whose elements have names, and that act as tuples do."""
    if not issubclass(cls, tuple):
        return False
    if hasattr(cls, "n_fields"):
        return True
    return hasattr(cls, "_fields") and not any(is_own_of_tuple(cls, n) for n in _OF_TUPLES)


def is_own_of_tuple(cls: type, name: str) -> bool:
    """Whether a class that inherits from tuple defines anew how its instances act."""
    found = class_attribute(cls, name)
    return found is not ABSENT and found is not class_attribute(tuple, name)


_OF_TUPLES = frozenset(
    {
        *("__getitem__", "__len__", "__iter__", "__contains__", "__reversed__", "__bool__"),
        *("__str__", "__format__", "__getattr__", "__copy__", "__deepcopy__", "__reduce_ex__"),
        *("__reduce__", "__getstate__"),
    }
)
"""What is not asked of the class of a named tuple, so that it must be as in any tuple."""
PROTOCOL_OF_TUPLES = _OF_TUPLES | {
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__"),
    *("__add__", "__radd__", "__iadd__", "__mul__", "__rmul__", "__imul__", "__index__"),
    *("__int__", "__float__", "__complex__", "__abs__", "__round__", "__call__"),
}
"""What the trace takes to be as it is in the class of a named tuple."""


def shown(value: object) -> str:
    """A constant for people; what an enum's own class would say is not asked for."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value._name_}"
    if type(value) is int and not is_written(value):
        return f"a number of {value.bit_length()} bits"
    return repr(value)


def is_empty(cell: types.CellType) -> bool:
    """Whether a cell holds nothing."""
    try:
        cell.cell_contents  # noqa: B018  # it raises
    except ValueError:
        return True
    return False


def own_table(value: object) -> dict[str, Any]:
    """The instance dictionary of an object, past what its class would do."""
    table: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return table


def thread_table(value: threading.local) -> dict[str, Any]:
    """What an object holds for the thread that asks."""
    table: dict[str, Any] = threading.local.__getattribute__(value, "__dict__")
    return table


def is_plain_subclass(cls: type) -> bool:
    """Whether tensors of a class are like others below `__torch_function__`."""
    dispatch = class_attribute(cls, "__torch_dispatch__")
    is_plain = dispatch is class_attribute(torch.Tensor, "__torch_dispatch__")
    known = cls in (torch.Tensor, torch.nn.Parameter) or issubclass(cls, torch.nn.Parameter)
    return is_plain and not known


def plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """The tensor in the memory of one of a subclass."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


def are_plain_leaves(*tensors: torch.Tensor) -> bool:
    """Whether autograd has made none of these tensors, and calls nobody for their gradients."""
    for tensor in tensors:  # a guard of each call, for each parameter: a loop takes half the time
        if not tensor.is_leaf or tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            return False
        if getattr(tensor, "grad_dtype", tensor.dtype) is not tensor.dtype:
            return False
    return True
