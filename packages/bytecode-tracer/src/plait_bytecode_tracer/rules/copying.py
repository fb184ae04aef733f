"""`copy.copy` and `copy.deepcopy` of tracked values."""

from __future__ import annotations

import copy
import copyreg
import types
from typing import Any

import torch

from plait_bytecode_tracer.classes import type_of
from plait_bytecode_tracer.containers import describe
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.gradients import gradient, is_leaf
from plait_bytecode_tracer.keys import keep_distinct
from plait_bytecode_tracer.objects import (
    MISSING,
    builtin_base,
    instance_attribute,
    static_attribute,
    storage_of,
)
from plait_bytecode_tracer.operations import same
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.twins import TWINS
from plait_bytecode_tracer.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    TensorVariable,
    Variable,
    is_constant,
)

_OWN_WAYS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs_ex__")
_ATOMS = types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type


@builtin(copy.copy)
def shallow(frame: Frame, value: Variable) -> Variable:
    return _copied(frame, value, "__copy__", lambda item: item, {})


@builtin(copy.deepcopy)
def deep(frame: Frame, value: Variable, memo: Variable | None = None) -> Variable:
    if memo is not None:
        raise TraceBreakError("GB0002", "deepcopy with a memo")
    return _deep(frame, value, {})


def _deep(frame: Frame, value: Variable, made: dict[int, Variable]) -> Variable:
    """A deep copy; what occurs twice is copied once."""
    key = id(value.value) if isinstance(value, Known) else id(value)
    if key not in made:
        if not (isinstance(value, Known) and _is_atom(value.value)):
            keep_distinct(frame, value)
        made[key] = _copied(
            frame, value, "__deepcopy__", lambda item: _deep(frame, item, made), made
        )
    return made[key]


def _is_atom(value: object) -> bool:
    """Whether a value is its own copy."""
    return is_constant(value) or isinstance(value, _ATOMS)


def _copied(
    frame: Frame, value: Variable, method: str, inner: Any, made: dict[int, Variable]
) -> Variable:
    key = id(value.value) if isinstance(value, Known) else id(value)
    match value:
        case SequenceVariable() if value.kind is tuple:
            return _copied_tuple(value, method, inner)
        case SliceVariable():
            if method == "__copy__":
                return value
            return SliceVariable([inner(part) for part in value.parts])
        case SequenceVariable():
            copied = SequenceVariable([], value.kind)
            made[key] = copied
            copied.items.extend(inner(item) for item in value.items)
            return copied
        case DictVariable():
            if value.original is not None and getattr(value.original, "__dict__", None):
                raise TraceBreakError("GB0002", "a copy of an OrderedDict with attributes")
            result = DictVariable({}, value.kind, factory=value.factory)
            made[key] = result
            result.attributes.update({n: inner(item) for n, item in value.attributes.items()})
            for name, item in value.items.items():
                result.items[name] = inner(item)
            return result
        case TensorVariable() if method == "__deepcopy__":
            return _copied_tensor(frame, value)
        case SetVariable() if value.kind is frozenset and method == "__copy__":
            return value
        case SetVariable():
            return SetVariable(set(value.items), kind=value.kind)
        case Known(real) if _is_atom(real):
            return value
        case Known() | ObjectVariable():
            return _copied_object(frame, value, method, inner, made)
    raise TraceBreakError("GB0002", f"a copy of a {describe(value)}")


def _copied_tensor(frame: Frame, value: TensorVariable) -> Variable:
    """A deep copy of a leaf that fills its memory alone: of others, memory is copied whole."""
    state, fake = frame.state, value.fake
    storage = fake.untyped_storage()
    shares = any(
        other is not value
        and isinstance(other, TensorVariable)
        and other.fake.untyped_storage()._cdata == storage._cdata
        for other in state.wrapped.values()
    )
    whole = storage.nbytes() == fake.numel() * fake.element_size() and not fake.storage_offset()
    alone = whole and not shares and is_leaf(state, value) and not has_attributes(value)
    if not alone or not _has_no_gradient(frame, value):
        raise TraceBreakError("GB0002", "a deep copy of a tensor that shares its memory")
    state.guard_requires_grad()
    node, plain = state.emit("call_method", "detach", [value], {})
    detached = TensorVariable(node, plain)
    options = {"memory_format": constant(torch.preserve_format)}
    node, cloned = state.emit("call_method", "clone", [detached], options)
    copied = TensorVariable(node, cloned)
    wanted = constant(fake.requires_grad)
    if value.cls is torch.nn.Parameter:
        node, cloned = state.emit("call_function", torch.nn.Parameter, [copied, wanted], {})
        return TensorVariable(node, cloned, None, torch.nn.Parameter)
    if fake.requires_grad:
        raise TraceBreakError("GB0002", "a deep copy of a tensor that requires gradients")
    return copied


def _has_no_gradient(frame: Frame, value: TensorVariable) -> bool:
    """Whether there is no gradient to copy, which copies of parameters leave out."""
    if value.cls is torch.nn.Parameter:
        return True
    found = gradient(frame, value)
    return isinstance(found, Known) and found.value is None


def has_attributes(value: TensorVariable) -> bool:
    """Whether somebody set attributes on a tensor."""
    real = value.original
    return real is not None and bool(getattr(real, "__dict__", None))


def _copied_tuple(value: SequenceVariable, method: str, inner: Any) -> Variable:
    """A tuple itself, unless the copy of one of its elements is another object."""
    if method == "__copy__":
        return value
    items = [inner(item) for item in value.items]
    if all(same(one, other) for one, other in zip(items, value.items, strict=True)):
        return value
    return SequenceVariable(items, tuple)


def _copied_object(
    frame: Frame, value: Known | ObjectVariable, method: str, inner: Any, made: dict[int, Variable]
) -> Variable:
    """A copy of an object, as its class would have it by default."""
    cls = type_of(value)
    is_twin = isinstance(value, ObjectVariable) and value.cls in TWINS
    own = getattr(value.cls if isinstance(value, ObjectVariable) else cls, method, None)
    if isinstance(own, types.FunctionType):
        from plait_bytecode_tracer.calls import call

        memo: list[Variable] = [] if method == "__copy__" else [DictVariable({})]
        return call(frame, constant(own), [value, *memo], {})
    usual = torch.nn.Module if issubclass(cls, torch.nn.Module) else object
    default = all(
        static_attribute(cls, name) is static_attribute(usual, name) for name in _OWN_WAYS
    )
    default = default and cls not in copyreg.dispatch_table
    known = not is_twin and _is_of_python(cls)
    if issubclass(cls, torch.nn.Module) and cls.__module__.startswith("torch.jit"):
        known = False
    if not default or not known or issubclass(cls, torch.Tensor):
        raise TraceBreakError("GB0002", f"a copy of a {cls.__name__}")
    copied = ObjectVariable(cls)
    made[id(value.value) if isinstance(value, Known) else id(value)] = copied
    storage = storage_of(frame, value)
    if storage is not None:
        copied.base = _copied(frame, storage, method, inner, made)
    names = (
        list(value.attributes) if isinstance(value, ObjectVariable) else _own_names(frame, value)
    )
    for name in names:
        held = instance_attribute(frame, value, name)
        if held is not None:
            copied.attributes[name] = inner(held)
    return copied


def _is_of_python(cls: type) -> bool:
    """Whether instances hold nothing in C but what an object, dict or list does."""
    base: Any = builtin_base(cls) or object
    if base not in (object, dict, list) or static_attribute(cls, "__del__") is not MISSING:
        return False
    try:
        base.__new__(cls)
    except TypeError:  # its C class has a layout of its own
        return False
    return True


def _own_names(frame: Frame, value: Known) -> list[str]:
    """The names under which an object from outside holds something now."""
    if value.source is None:
        raise TraceBreakError("GB0002", f"a copy of a {describe(value)} without a source")
    if not hasattr(type(value.value), "__dict__") or not type(value.value).__dictoffset__:
        raise TraceBreakError("GB0002", f"a copy of a {describe(value)}")
    table = frame.state.own_dict(value.value, value.source)
    written = frame.state.attributes.get(id(value.value), {})
    return list(dict.fromkeys([*table.items, *written]))
