"""Which real objects are known for good: constants, definitions, what tells no change."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import inspect
import re
import struct
import types
from typing import Any

import torch

from plait_bytecode_tracer.outside.calendars import PLAIN, ZONED, is_plain_time
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.numpy_objects import is_numpy_constant, is_of_numpy

CONSTANT_TYPES: tuple[type, ...] = (
    int,
    float,
    bool,
    str,
    bytes,
    complex,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    torch.finfo,
    torch.iinfo,
    torch._C._SDPBackend,
    range,
    slice,
    *PLAIN,
)
"""Immutable values that are compared by value."""
_CONSTANT_ALONE = frozenset(CONSTANT_TYPES) - {slice}
"""Those that hold no others."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_constant(value: Any) -> bool:
    """Whether a value is immutable through and through, and compares by value."""
    if type(value) in _CONSTANT_ALONE:
        return True
    if is_a(value, _SYMBOLIC):
        return False
    if type(value) in (tuple, frozenset):
        return all(is_constant(item) for item in value)
    if type(value) is slice:
        return all(is_constant(part) for part in (value.start, value.stop, value.step))
    if type(value) in ZONED:
        return is_plain_time(value)
    return is_numpy_constant(value) or is_a(value, enum.Enum) or is_placement_class(type(value))


def is_placement_class(cls: type) -> bool:
    """Whether its instances say how one dimension of a DTensor lies over processes."""
    of_torch = cls.__module__ == "torch.distributed.tensor.placement_types"
    return of_torch and cls.__name__ in _PLACEMENTS


_PLACEMENTS = frozenset({"Shard", "Replicate", "Partial", "_StridedShard"})


UNCHANGING: tuple[type, ...] = (
    *(inspect.Signature, inspect.Parameter, inspect.BoundArguments, re.Pattern, re.Match),
    *(types.CodeType, struct.Struct),
)
"""Classes of objects that tell what does not change."""
VIEWS: tuple[type, ...] = (
    *(type({}.keys()), type({}.values()), type({}.items())),
    *(type(collections.OrderedDict().keys()), type(collections.OrderedDict().values())),
    type(collections.OrderedDict().items()),
)
"""Classes of views of dicts."""
_FIXED_TYPES = (*UNCHANGING, *VIEWS, types.MappingProxyType)


def is_fixed(value: Any) -> bool:
    """Whether methods of a value can be called while tracing: they tell what does not change."""
    return is_constant(value) or is_a(value, _FIXED_TYPES)


def is_nan(value: object) -> bool:
    """Whether it is a float that containers find by its identity, as it equals nothing."""
    return type(value) is float and value != value


_DEFINITIONS: tuple[type, ...] = (
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)
_METACLASSES = (type, abc.ABCMeta, enum.EnumMeta, type(torch.Tensor))
_BY_IDENTITY: tuple[type, ...] = (
    *(types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.UnionType, types.GenericAlias),
    *(torch._ops.OperatorBase, torch._ops.OpOverloadPacket, torch.jit.ScriptFunction),
)


def acts_by_identity(value: Any) -> bool:
    """Whether what an object does follows from which one it is, not from what is read of it."""
    return is_a(value, _BY_IDENTITY) or type(value).__module__ == "typing" or is_of_numpy(value)


def is_definition(value: object) -> bool:
    """Whether it is a function or class whose special methods are Python's own."""
    if is_a(value, _DEFINITIONS) or type(value) in _METACLASSES:
        return True
    metaclass: Any = type(value)
    return issubclass(metaclass, type) and _asks_as_type(metaclass)


_ASKED = ("__repr__", "__str__", "__hash__", "__eq__", "__format__", "__call__", "__getattribute__")


@functools.cache
def _asks_as_type(metaclass: Any) -> bool:
    """Whether a metaclass leaves to `type` what functions ask of a class."""
    return all(getattr(metaclass, name) is getattr(type, name) for name in _ASKED)
