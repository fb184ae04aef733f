"""Attributes of containers, their views and slices."""

from __future__ import annotations

import collections
import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.objects import bind_attribute
from plait_bytecode_tracer.objects.standins import HEAP_TYPE
from plait_bytecode_tracer.objects.statics import MISSING, guard_class, is_python, static_attribute
from plait_bytecode_tracer.outside.tables import own_dict
from plait_bytecode_tracer.twins.registry import proxy_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.plain import TUPLE_GETTER, is_named_tuple
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    Known,
    MethodVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    Variable,
    ViewVariable,
)

_BOUNDS = ("start", "stop", "step")


def slice_attribute(owner: SliceVariable, name: str) -> Variable | None:
    """`start`, `stop`, `step` and what the class of slices has."""
    if name in _BOUNDS:
        return owner.parts[_BOUNDS.index(name)]
    if name == "__class__":
        return constant(slice)
    if not hasattr(slice, name):
        return None
    if all(isinstance(part, Known) and is_constant(part.value) for part in owner.parts):
        return constant(getattr(plain_value(owner), name))
    raise TraceBreakError("GB0007", f"the attribute {name!r} of a slice")


def view_attribute(owner: ViewVariable, name: str) -> Variable | None:
    """An attribute of a view of a dict."""
    if name == "mapping":
        return proxy_of(owner.holder or owner.owner)
    if name == "__class__":
        return constant(owner.kind)
    return attribute_of_class_in_c(owner, owner.kind, name)


def container_attribute(
    frame: Frame, owner: SequenceVariable | DictVariable | SetVariable, name: str
) -> Variable | None:
    """An attribute of a container, or a named field of a tuple."""
    kind = owner.kind
    if name == "__class__":
        return constant(kind)
    if isinstance(owner, SequenceVariable):
        if is_named_tuple(kind) and is_python(static_attribute(kind, "__getattribute__")):
            raise TraceBreakError("GB0007", "a named tuple with a __getattribute__ of its own")
        if is_named_tuple(kind) and kind.__flags__ & HEAP_TYPE:
            guard_class(frame, kind, "__getattribute__")
            guard_class(frame, kind, name)
        position = _field_position(kind, name)
        if position is not None:
            return owner.items[position]
        if isinstance(static_attribute(kind, name), types.MemberDescriptorType):
            return _hidden_field(frame, owner, name)
    if isinstance(owner, DictVariable) and name == "default_factory" and is_defined(kind, name):
        return constant(None) if owner.factory is None else owner.factory
    if isinstance(owner, SequenceVariable) and kind.__dictoffset__:
        found = _attribute_of_tuple(frame, owner, name)
        if found is not None:
            return found
    if not is_defined(kind, name) or name == "__dict__":
        if not isinstance(owner, DictVariable):
            return None
        return _attribute_of_ordered(frame, owner, name)
    if isinstance(owner, SequenceVariable) and is_named_tuple(kind):
        static = static_attribute(kind, name)
        if isinstance(static, classmethod):
            return BoundVariable(frame.state.made.given(static.__func__), constant(kind))
        if not hasattr(type(static), "__get__") or is_python(static) or type(static) is property:
            return bind_attribute(frame, owner, kind, name, static)
    return attribute_of_class_in_c(owner, kind, name)


def attribute_of_class_in_c(owner: Variable, kind: type, name: str) -> Variable | None:
    """What a class in C has for its instances: methods, `__doc__`, the `__hash__` that is None."""
    static = static_attribute(kind, name)
    if static is MISSING:
        return None
    if isinstance(static, types.GetSetDescriptorType | types.MemberDescriptorType):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a {kind.__name__}")
    return constant(static) if is_constant(static) else MethodVariable(owner, name)


def _hidden_field(frame: Frame, owner: SequenceVariable, name: str) -> Variable:
    """A field of a tuple of a class of C's that is none of its elements."""
    if owner.source is None or owner.original is None:
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a {owner.kind.__name__}")
    return frame.state.wrap(getattr(owner.original, name), owner.source.attribute(name))


def _attribute_of_tuple(frame: Frame, owner: SequenceVariable, name: str) -> Variable | None:
    """What somebody set on a NamedTuple whose class gives it a dict."""
    if owner.original is None or owner.source is None:
        if name == "__dict__":
            raise TraceBreakError("GB0007", "the __dict__ of a tuple made in the trace")
        return None
    table = own_dict(frame.state, owner.original, owner.source)
    return table if name == "__dict__" else table.items.get(name)


def _attribute_of_ordered(frame: Frame, owner: DictVariable, name: str) -> Variable | None:
    """What somebody set on an OrderedDict, the one builtin dict that has attributes."""
    if owner.kind is not collections.OrderedDict:
        return None
    if owner.original is None or owner.source is None:
        return DictVariable(owner.attributes) if name == "__dict__" else owner.attributes.get(name)
    if name == "__dict__":
        return own_dict(frame.state, owner.original, owner.source)
    if name in owner.original.__dict__:
        return frame.state.wrap(owner.original.__dict__[name], owner.source.attribute(name))
    text = f"{owner.source.text} has no attribute {name}"
    frame.state.require(owner.source, Kind.NO_ATTRIBUTE, name, text)
    return None


def _field_position(kind: Any, name: str) -> int | None:
    """The position of a named field of a NamedTuple or torch.return_types class."""
    static = static_attribute(kind, name)
    if type(static) is TUPLE_GETTER:
        return int(static.__reduce__()[1][0])
    if hasattr(kind, "n_sequence_fields") and isinstance(static, types.MemberDescriptorType):
        if name in getattr(kind, "__match_args__", ()):
            return int(kind.__match_args__.index(name))
        place = getattr(kind(range(kind.n_fields)), name)
        return place if isinstance(place, int) and place < kind.n_sequence_fields else None
    return None
