"""Arithmetic of objects and containers, in the order in which Python asks the operands."""

from __future__ import annotations

import collections
import operator
import types
import typing
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import make
from plait_bytecode_tracer.objects.comparison import (
    is_implemented,
    not_implemented,
    tracked_container,
)
from plait_bytecode_tracer.objects.containers import changed, describe, extend, plain_value
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.objects.formatting import percent
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.objects import special_method, storage_of
from plait_bytecode_tracer.objects.operations import IN_PLACE
from plait_bytecode_tracer.objects.specials import call_special
from plait_bytecode_tracer.objects.standins import HEAP_TYPE, fails_for_real
from plait_bytecode_tracer.objects.statics import MISSING, is_python, static_attribute
from plait_bytecode_tracer.values.classes import name_in_errors, type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.hints import sized_elements
from plait_bytecode_tracer.values.keys import constant_key
from plait_bytecode_tracer.values.open_lists import joined
from plait_bytecode_tracer.values.set_order import InOrder, note_change, order_unknown
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    Variable,
    ViewVariable,
)

_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)
_SEQUENCE_METHODS = ("__add__", "__iadd__", "__mul__", "__rmul__", "__imul__")
"""What these classes define as sequences: Python asks both operands for numbers' first."""
_NUMBERS = (int, float, complex)
_LARGEST = 1_000_000
"""How many elements a repeated sequence has at most."""


def binary(frame: Frame, function: Any, left: Variable, right: Variable) -> Variable:
    """`left + right` and its like, as PyNumber_Add and its like do it."""
    left, right = tracked_container(left) or left, tracked_container(right) or right
    name = function.__name__.strip("_")
    plain = name
    if function in IN_PLACE:
        plain = name.removeprefix("i")
        found = _number_method(frame, left, f"__{name}__", right)
        if is_implemented(found):
            return found
    for owner, method, other in _tries(left, plain, right):
        found = _number_method(frame, owner, method, other)
        if is_implemented(found):
            return found
    if plain in ("add", "mul"):
        found = _sequence_operator(frame, name, left, right)
        if is_implemented(found):
            return found
    return fails_for_real(function, [left, right])


def _tries(left: Variable, name: str, right: Variable) -> list[tuple[Variable, str, Variable]]:
    """Which methods are asked: a subclass's own reflected one goes first."""
    kinds = type_of(left), type_of(right)
    forward = (left, f"__{name}__", right)
    if kinds[0] is kinds[1]:
        return [forward]
    reflected = (right, f"__r{name}__", left)
    own = static_attribute(kinds[1], reflected[1])
    overrides = own is not MISSING and own is not static_attribute(kinds[0], reflected[1])
    first = kinds[0] in kinds[1].__mro__ and overrides
    return [reflected, forward] if first else [forward, reflected]


def _number_method(frame: Frame, owner: Variable, name: str, other: Variable) -> Variable:
    """What the class of one operand says; NotImplemented where it says nothing."""
    static = static_attribute(type_of(owner), name)
    is_asked = static is not MISSING and (
        not _is_of_sequences(static, name) or _acts_as_number(type_of(owner), name)
    )
    if not is_asked:
        if isinstance(owner, Known | ObjectVariable):
            special_method(frame, owner, name)  # guards that there is none
        return not_implemented()
    match owner:
        case Known() if is_constant(owner.value):
            return _constant_operator(frame, owner, name, other)
        case Known() if _is_type_form(owner.value) and not is_python(static):
            return _join_types(frame, owner, name, other)
        case Known() | ObjectVariable():
            method = special_method(frame, owner, name)
            return not_implemented() if method is None else frame.call(method, [other], {})
        case SequenceVariable() | DictVariable() | SetVariable() | ViewVariable():
            if is_python(static):
                return frame.call(constant(static), [owner, other], {})
            return container_operator(frame, owner, name, other)
    return not_implemented()


def _is_of_sequences(static: Any, name: str) -> bool:
    return (
        name in _SEQUENCE_METHODS
        and isinstance(static, types.WrapperDescriptorType)
        and static.__objclass__ in _SEQUENCES
    )


def _acts_as_number(cls: type, name: str) -> bool:
    """Whether Python asks a class for a method of sequences before it asks the other operand.

    It does where the class has its own method for the reflected operator, since both share a
    slot; and `list.__iadd__` of a class that inherits from list, which gets a slot for numbers.
    """
    if name == "__iadd__":
        return bool(cls.__flags__ & HEAP_TYPE)
    plain = name.strip("_").removeprefix("r")
    both = (f"__{plain}__", f"__r{plain}__") if plain in ("add", "mul") else ()
    found = [(each, static_attribute(cls, each)) for each in both]
    return any(own is not MISSING and not _is_of_sequences(own, each) for each, own in found)


def _constant_operator(frame: Frame, owner: Known, name: str, other: Variable) -> Variable:
    value = owner.value
    method = static_attribute(type(value), name)
    if is_python(method):  # of an enum
        return frame.call(constant(method), [owner, other], {})
    if type(value) is str and name == "__mod__":
        return percent(frame, value, other)
    if isinstance(other, Known) and is_constant(other.value):
        return fold(method, [owner, other], {})
    if type(value) in (bool, *_NUMBERS) and not issubclass(type_of(other), _NUMBERS):
        return not_implemented()
    if name == "__rmod__" and type(value) is str:
        return not_implemented()
    raise TraceBreakError("GB0008", f"{name} of {type(value).__name__} and {describe(other)}")


_TYPE_FORMS = (type, types.UnionType, types.GenericAlias, type(None), typing.TypeVar)


def _is_type_form(value: Any) -> bool:
    return isinstance(value, _TYPE_FORMS)


def _join_types(frame: Frame, owner: Known, name: str, other: Variable) -> Variable:
    """`int | None`"""
    if name not in ("__or__", "__ror__") or not isinstance(other, Known):
        return not_implemented()
    if not _is_type_form(other.value):
        raise TraceBreakError("GB0008", f"a class or a {describe(other)}")
    sides: list[Variable] = [owner, other] if name == "__or__" else [other, owner]
    if frame.state.made.recipes:
        return make(frame, operator.or_, sides, {})
    for side in (owner, other):
        if side.source is not None:
            frame.state.guard_identity(side.source, side.value)
    try:
        return constant(operator.or_(*[plain_value(side) for side in sides]))
    except TypeError as error:
        raise python_error(error) from error


# Builtin containers.


def container_operator(frame: Frame, owner: Variable, name: str, other: Variable) -> Variable:
    """A method for an operator, of a builtin container."""
    given = other
    if isinstance(other, ObjectVariable | Known):
        other = tracked_container(other) or storage_of(frame, other) or other
    match owner:
        case SequenceVariable():
            if name in ("__add__", "__iadd__"):
                return concatenate(frame, owner, name, other, given)
            return repeat(frame, owner, name, given)
        case DictVariable() if name in ("__or__", "__ror__", "__ior__"):
            return _merge(frame, owner, name, given, other)
        case SetVariable() if isinstance(other, SetVariable):
            return _combine(frame, owner, name, other)
        case ViewVariable():
            return _combine_views(frame, owner, name, given, other)
    return not_implemented()


def _kind_of_result(kind: type) -> type:
    """The class of a sum or product of a list or tuple."""
    from torch import Size

    return list if issubclass(kind, list) else Size if issubclass(kind, Size) else tuple


def concatenate(
    frame: Frame, owner: SequenceVariable, name: str, other: Variable, given: Variable
) -> Variable:
    """`list.__add__`, `tuple.__add__`, and `list.__iadd__`, which takes any iterable.

    Args:
        frame: where it happens.
        owner: the left operand.
        name: the method.
        other: the right operand, or what it stores as a builtin container.
        given: the right operand itself.
    """
    kind = _kind_of_result(owner.kind)
    if name == "__iadd__" and kind is list:
        add_elements(frame, owner, given)
        return owner
    if isinstance(other, Known) and type(other.value) is tuple:  # as `__mro__` is
        other = SequenceVariable(list(elements(frame, other)), tuple)
    same_base = isinstance(other, SequenceVariable) and (
        issubclass(other.kind, tuple) is issubclass(kind, tuple)
    )
    if not same_base or not isinstance(other, SequenceVariable):
        base = "list" if kind is list else "tuple"
        wrong = name_in_errors(type_of(given))
        fails(TypeError, f'can only concatenate {base} (not "{wrong}") to {base}')
    if kind is tuple and not other.items and owner.kind is tuple:
        return owner
    if kind is tuple and not owner.items and type_of(given) is tuple:
        return other
    return SequenceVariable(joined(owner.items, other.items), kind)


def add_elements(frame: Frame, owner: SequenceVariable, values: Variable) -> None:
    """`list.extend`: what was added before an exception stays."""
    try:
        owner.items.extend(sized_elements(frame, values))
    finally:
        changed(frame, owner)


def repeat(frame: Frame, owner: SequenceVariable, name: str, other: Variable) -> Variable:
    """`list.__mul__` and its like."""
    count = _count(frame, other)
    if count is None:
        named = name_in_errors(type_of(other))
        fails(TypeError, f"{named!r} object cannot be interpreted as an integer")
    if len(owner.items) * count > _LARGEST:
        raise TraceBreakError("GB0001", "a sequence that is repeated too often to trace")
    kind = _kind_of_result(owner.kind)
    if name == "__imul__" and kind is list:
        owner.items[:] = list(owner.items) * count
        changed(frame, owner)
        return owner
    if owner.kind is tuple and (count == 1 or not owner.items):
        return owner
    return SequenceVariable(list(owner.items) * count, kind)


def _count(frame: Frame, value: Variable) -> int | None:
    """An index; None where the value is none."""
    if isinstance(value, Known) and isinstance(value.value, int):
        return int(value.value)
    if static_attribute(type_of(value), "__index__") is MISSING:
        return None
    found = call_special(frame, operator.index, [value])
    return found.value if isinstance(found, Known) and isinstance(found.value, int) else None


def _sequence_operator(frame: Frame, name: str, left: Variable, right: Variable) -> Variable:
    """`+` and `*` of sequences, where no operand takes it as a number."""
    if name in ("add", "iadd"):
        for method in ("__iadd__", "__add__") if name == "iadd" else ("__add__",):
            if _is_of_sequences(static_attribute(type_of(left), method), method):
                return _call_sequence(frame, left, method, right)
        return not_implemented()
    for owner, other in ((left, right), (right, left)):
        if not _is_of_sequences(static_attribute(type_of(owner), "__mul__"), "__mul__"):
            continue
        if name == "imul" and owner is right and _acts_as_sequence(type_of(left)):
            return not_implemented()
        count = _count(frame, other)
        if count is None:
            given = name_in_errors(type_of(other))
            fails(TypeError, f"can't multiply sequence by non-int of type {given!r}")
        in_place = name == "imul" and owner is left
        own = static_attribute(type_of(left), "__imul__")
        method = "__imul__" if in_place and _is_of_sequences(own, "__imul__") else "__mul__"
        return _call_sequence(frame, owner, method, constant(count))
    return not_implemented()


def _acts_as_sequence(cls: type) -> bool:
    """Whether a class has slots of sequences, as all that are written in Python do."""
    return bool(cls.__flags__ & HEAP_TYPE) or hasattr(cls, "__len__")


def _call_sequence(frame: Frame, owner: Variable, method: str, other: Variable) -> Variable:
    if isinstance(owner, SequenceVariable):
        return container_operator(frame, owner, method, other)
    if isinstance(owner, Known) and is_constant(owner.value):
        if method == "__mul__":
            return fold(operator.mul, [owner, constant(_count(frame, other))], {})
        return _concatenate_texts(frame, owner, other)
    bound = special_method(frame, owner, method)
    return not_implemented() if bound is None else frame.call(bound, [other], {})


def _concatenate_texts(frame: Frame, owner: Known, other: Variable) -> Variable:
    """`str.__add__` and its like, of a constant and what is none."""
    kind = type(owner.value)
    given = type_of(other)
    stored = storage_of(frame, other)
    if isinstance(stored, Known) and issubclass(given, kind):
        return fold(operator.add, [owner, stored], {})
    if kind is not str or issubclass(given, str):
        raise TraceBreakError("GB0008", f"add of {kind.__name__} and {describe(other)}")
    return fails(TypeError, f'can only concatenate str (not "{given.__name__}") to str')


def _merge(
    frame: Frame, owner: DictVariable, name: str, given: Variable, held: Variable
) -> Variable:
    """An operator of a dict; `held` is what the other operand `given` stores, if it is a dict."""
    if name == "__ior__":
        extend(frame, owner, given)
        return owner
    if not isinstance(held, DictVariable):
        return not_implemented()
    first, second = (owner, given) if name == "__or__" else (given, owner)
    return merged(frame, first, second, owner)


def merged(
    frame: Frame, first: Variable, second: Variable, like: DictVariable | None = None
) -> DictVariable:
    """A new dict of what two give, of the kind of `like`, or a plain one."""
    kind, factory = (dict, None) if like is None else (like.kind, like.factory)
    made = copied_dict(frame, first, kind)
    made.factory = factory
    extend(frame, made, second)
    return made


def copied_dict(frame: Frame, value: Variable, kind: type = dict) -> DictVariable:
    """A new dict of what a dict gives: an empty one is not asked for a plain one."""
    made = DictVariable({}, kind)
    held = value if isinstance(value, DictVariable) else storage_of(frame, value)
    if kind is not dict or not isinstance(held, DictVariable) or held.items:
        extend(frame, made, value)
    return made


def _combine(frame: Frame, owner: SetVariable, name: str, other: SetVariable) -> Variable:
    reflected = name.startswith("__r")
    first, second = (other, owner) if reflected else (owner, other)
    if isinstance(owner.items, InOrder) or isinstance(other.items, InOrder):
        raise order_unknown()
    plain = f"__{name.strip('_').removeprefix('r' if reflected else '')}__"
    if plain.startswith("__i"):
        if owner.kind is frozenset:
            return not_implemented()
        getattr(set, plain)(owner.items, other.items)
        note_change(owner, plain, [other.items])
        changed(frame, owner)
        return owner
    made = getattr(set, plain)(first.items, second.items)
    return SetVariable(made, kind=first.kind)


def _combine_views(
    frame: Frame, owner: ViewVariable, name: str, given: Variable, other: Variable
) -> Variable:
    """A set operator of keys or items, with any iterable, or what that stores.

    Python's own views do it: in which order the result has its elements, they decide. What
    stores a set is taken for it, but for `&`, which iterates.
    """
    is_of_class = isinstance(given, Known | ObjectVariable) and other is storage_of(frame, given)
    if is_of_class and not (isinstance(other, SetVariable) and name not in _INTERSECTIONS):
        other = given
    mine = _real_view(frame, owner)
    if mine is None:
        return not_implemented()
    theirs: Any = None
    if isinstance(other, SetVariable):
        if isinstance(other.items, InOrder):
            raise order_unknown()
        theirs = other.items
        if name in _INTERSECTIONS and other.kind is not set:
            # A frozen set may be what does it, and decides the class; one of a subclass is not.
            theirs = (frozenset if other.kind is frozenset else list)(theirs)
    elif isinstance(other, ViewVariable):
        theirs = _real_view(frame, other)
    if theirs is None:
        theirs = [constant_key(frame, item) for item in elements(frame, other)]
    made = getattr(mine, name)(theirs)
    return SetVariable(made if type(made) is set else set(made), kind=type(made))


_INTERSECTIONS = ("__and__", "__rand__")


def _real_view(frame: Frame, view: ViewVariable) -> Any:
    """Keys or items like those of a tracked dict; None for its values."""
    if view.name == "keys":
        return dict.fromkeys(view.owner.items).keys()
    if view.name == "items":
        return dict([plain_value(item) for item in elements(frame, view)]).items()
    return None
