"""Comparisons, in the order in which Python asks the classes of both operands."""

from __future__ import annotations

import collections
import itertools
import operator
import types
import weakref
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.functions import content_of
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.objects import special_method, storage_of
from plait_bytecode_tracer.objects.operations import apply, element_equal, identical, same
from plait_bytecode_tracer.objects.standins import fails_for_real
from plait_bytecode_tracer.objects.statics import is_python, static_attribute
from plait_bytecode_tracer.values.classes import defined_as, type_of
from plait_bytecode_tracer.values.constants import is_constant, is_definition
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    CellVariable,
    DictVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    ReferenceVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    Variable,
    ViewVariable,
)

COMPARISONS: dict[Any, tuple[str, str]] = {
    operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.eq: ("__eq__", "__eq__"),
    operator.ne: ("__ne__", "__ne__"),
    operator.gt: ("__gt__", "__lt__"),
    operator.ge: ("__ge__", "__le__"),
}
"""The method of the left operand that an operator calls, and that of the right one."""
_FUNCTIONS = {names[0]: function for function, names in COMPARISONS.items()}
_EQUALITY = ("__eq__", "__ne__")
_SINGLE = (int, float, complex, str, bytes, bytearray, memoryview)
"""Builtin classes whose instances compare with instances of a class that inherits from one."""


def not_implemented() -> Variable:
    """What a method returns that leaves the operation to the other operand."""
    return constant(NotImplemented)


def is_implemented(value: Variable) -> bool:
    return not (isinstance(value, Known) and value.value is NotImplemented)


def compare(frame: Frame, function: Any, left: Variable, right: Variable) -> Variable:
    """`left < right` and its like, as PyObject_RichCompare does it."""
    name, mirrored = COMPARISONS[function]
    kinds = type_of(left), type_of(right)
    tries = [(left, name, right), (right, mirrored, left)]
    if kinds[0] is not kinds[1] and kinds[0] in kinds[1].__mro__:
        tries.reverse()
    for owner, method, other in tries:
        found = ask(frame, owner, method, other)
        if is_implemented(found):
            return found
    if name in _EQUALITY:
        return constant(identical(frame, left, right) is (name == "__eq__"))
    return fails_for_real(function, [left, right])


def ask(frame: Frame, owner: Variable, name: str, other: Variable) -> Variable:
    """What the class of one operand says; NotImplemented where it says nothing."""
    match owner:
        case Known() if is_constant(owner.value):
            return _compare_constant(frame, owner, name, other)
        case ReferenceVariable() if name in _EQUALITY:
            return frame.call(constant(getattr(weakref.ref, name)), [owner, other], {})
        case BoundVariable() | MethodVariable():
            return _compare_methods(frame, owner, name, other)
        case Known(real) if is_a(real, types.MethodType):
            return _compare_methods(frame, owner, name, other)
        case Known(real) if is_a(real, types.BuiltinFunctionType) and name in _EQUALITY:
            if isinstance(other, MethodVariable):
                return _compare_methods(frame, owner, name, other)
            if not isinstance(other, Known) or not is_definition(other.value):
                return not_implemented()
            return constant((real == other.value) is (name == "__eq__"))
        case Known() | ObjectVariable():
            method = special_method(frame, owner, name)
            return not_implemented() if method is None else frame.call(method, [other], {})
        case SequenceVariable() | DictVariable() | SetVariable() | ViewVariable():
            own = static_attribute(owner.kind, name)
            if is_python(own):
                return frame.call(constant(own), [owner, other], {})
            return compare_containers(frame, owner, name, other)
        case CellVariable() if isinstance(other, CellVariable):
            return _compare_cells(frame, owner, name, other)
        case SliceVariable() if isinstance(other, SliceVariable):
            pair = [SequenceVariable(side.parts, tuple) for side in (owner, other)]
            return compare_containers(frame, pair[0], name, pair[1])
    return not_implemented()


def _compare_cells(frame: Frame, owner: CellVariable, name: str, other: CellVariable) -> Variable:
    """Cells compare as what they hold; an empty one is less than others."""
    held = [content_of(frame, cell) for cell in (owner, other)]
    if held[0] is None or held[1] is None:
        return constant(_FUNCTIONS[name](held[0] is not None, held[1] is not None))
    return apply(frame, _FUNCTIONS[name], [held[0], held[1]])


def _compare_constant(frame: Frame, owner: Known, name: str, other: Variable) -> Variable:
    value = owner.value
    method = static_attribute(type(value), name)
    if is_python(method):  # of an enum
        return frame.call(constant(method), [owner, other], {})
    is_of_numpy = type(value).__module__.startswith("numpy")
    if isinstance(other, Known) and (
        is_constant(other.value) or (is_of_numpy and isinstance(other.value, type))
    ):
        return fold(getattr(type(value), name), [owner, other], {})
    container = tracked_container(owner)
    if container is not None:
        return compare_containers(frame, container, name, other)
    if issubclass(type_of(other), _SINGLE) or is_of_numpy:
        raise TraceBreakError("GB0008", f"{name} of a {type(value).__name__} and an object")
    return not_implemented()


def tracked_container(value: Variable) -> SequenceVariable | SetVariable | None:
    """A constant tuple or frozenset by its elements."""
    real = value.value if isinstance(value, Known) else None
    if isinstance(real, tuple) and is_constant(real):
        return SequenceVariable([constant(item) for item in real], type(real))
    if type(real) is frozenset and is_constant(real):
        return SetVariable(set(real), kind=frozenset)
    return None


def _compare_methods(frame: Frame, owner: Variable, name: str, other: Variable) -> Variable:
    """Bound methods are equal if they bind one function to one object."""
    sides = [_parts(frame, side) for side in (owner, other)]
    if name not in _EQUALITY or None in sides:
        return not_implemented()
    (function, receiver), (function_, receiver_) = [side for side in sides if side is not None]
    equal = same(receiver, receiver_) and same(function, function_)
    return constant(equal is (name == "__eq__"))


def _parts(frame: Frame, method: Variable) -> tuple[Variable, Variable] | None:
    """The function or method of a class in C, and what it is bound to."""
    match method:
        case BoundVariable(Variable() as function, receiver):
            return function, receiver
        case MethodVariable(receiver):
            return constant(defined_as(method)), receiver
        case Known(real) if is_a(real, types.MethodType):
            return constant(real.__func__), constant(real.__self__)
        case Known(real) if is_a(real, types.BuiltinMethodType | types.MethodWrapperType):
            if isinstance(real.__self__, types.ModuleType | type | None):
                return None
            receiver = frame.state.world.wrapped.get(id(real.__self__), constant(real.__self__))
            return constant(static_attribute(type(real.__self__), real.__name__)), receiver
    return None


def compare_containers(frame: Frame, owner: Variable, name: str, other: Variable) -> Variable:
    """The comparison method of a builtin container."""
    if isinstance(other, ObjectVariable | Known):
        held = tracked_container(other) or storage_of(frame, other)
        if held is None:
            return not_implemented()
        other = held
    match owner, other:
        case (SequenceVariable(), SequenceVariable()):
            if issubclass(owner.kind, tuple) is issubclass(other.kind, tuple):
                return _compare_sequences(frame, owner, name, other)
        case (DictVariable(), DictVariable()) if name in _EQUALITY:
            return constant(_equal_dicts(frame, owner, other) is (name == "__eq__"))
        case (SetVariable(), SetVariable()):
            return constant(getattr(set, name)(set(owner.items), set(other.items)))
        case (ViewVariable(), SetVariable() | ViewVariable()):
            sets = [set_of(frame, side) for side in (owner, other)]
            if sets[0] is not None and sets[1] is not None:
                return constant(getattr(set, name)(*sets))
    return not_implemented()


def set_of(frame: Frame, value: Variable) -> set[Any] | None:
    """The elements of a set, or of a dict's keys or items; None for others."""
    match value:
        case SetVariable():
            return set(value.items)
        case ViewVariable(owner, "keys"):
            return set(owner.items)
        case ViewVariable(_, "items"):
            return {plain_value(item) for item in elements(frame, value)}
    return None


def _compare_sequences(
    frame: Frame, owner: SequenceVariable, name: str, other: SequenceVariable
) -> Variable:
    """The first elements that differ decide, else the lengths."""
    if name in _EQUALITY and len(owner.items) != len(other.items):
        return constant(name == "__ne__")
    for place in itertools.count():  # what is asked may change the sequences
        if place >= min(len(owner.items), len(other.items)):
            break
        frame.state.pace.require_brief()
        one, two = owner.items[place], other.items[place]
        if element_equal(frame, one, two):
            continue
        if place >= min(len(owner.items), len(other.items)):
            break
        if name in _EQUALITY:
            return constant(name == "__ne__")
        return apply(frame, _FUNCTIONS[name], [one, two])
    return constant(_FUNCTIONS[name](len(owner.items), len(other.items)))


def _equal_dicts(frame: Frame, owner: DictVariable, other: DictVariable) -> bool:
    ordered = collections.OrderedDict
    if len(owner.items) != len(other.items):
        return False
    in_order = issubclass(owner.kind, ordered) and issubclass(other.kind, ordered)
    if in_order and list(owner.items) != list(other.items):
        return False
    for key in list(owner.items):  # what is asked may change the dicts
        item = owner.items.get(key)
        if item is not None:
            found = other.items.get(key)
            if found is None or not element_equal(frame, item, found):
                return False
    return True
