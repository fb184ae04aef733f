"""Values as keys of dicts and elements of sets, which are held in real dicts and sets.

Constants and definitions are keys as they are. Other objects are held in a key that has the
hash and the equality of the traced program's object, so that Python's own dict asks for
them when, and as often as, it does in the program.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame, instructions_of
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.objects import special_method, storage_of
from plait_bytecode_tracer.objects.standins import stand_in
from plait_bytecode_tracer.objects.statics import static_attribute
from plait_bytecode_tracer.outside.functions import settled
from plait_bytecode_tracer.values.classes import name_in_errors, type_of
from plait_bytecode_tracer.values.constants import is_constant, is_fixed, is_nan
from plait_bytecode_tracer.values.hook_numbers import HookNumber
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.object_keys import ReferenceKey
from plait_bytecode_tracer.values.variables import (
    CallableVariable,
    DictVariable,
    FunctionVariable,
    IdVariable,
    IteratorVariable,
    Known,
    ObjectKey,
    ObjectVariable,
    ReferenceVariable,
    SequenceVariable,
    SetVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
    key_variable,
)

_DEFINITIONS = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_BY_IDENTITY = (object.__dict__["__eq__"], object.__dict__["__hash__"])


class GroupKey(ObjectKey):
    """A tuple or frozenset of which elements are objects."""

    __slots__ = ("parts",)

    def __init__(self, variable: Variable, parts: Any) -> None:
        super().__init__(variable)
        self.parts = parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __eq__(self, other: object) -> bool:
        return bool(self.parts == (other.parts if isinstance(other, GroupKey) else other))


class IdKey(ObjectKey):
    """The id of an object."""

    __slots__ = ("inner",)

    def __init__(self, variable: IdVariable, inner: ObjectKey) -> None:
        super().__init__(variable)
        self.inner = inner

    @property
    def number(self) -> int | None:
        """The id, where it is that of an object from outside."""
        assert isinstance(self.variable, IdVariable)
        return self.variable.original

    def __hash__(self) -> int:
        return hash(self.inner if self.number is None else self.number)

    def __eq__(self, other: object) -> bool:
        if type(other) is int:
            return self.number == other
        if not isinstance(other, IdKey):
            return False
        if self.number is None or other.number is None:
            return self.inner == other.inner
        return self.number == other.number


class HashedKey(ObjectKey):
    """An object whose class defines its hash and equality."""

    __slots__ = ("frame", "hash")

    def __init__(self, frame: Frame, variable: Variable, hash_: int) -> None:
        super().__init__(variable)
        self.frame = frame
        self.hash = hash_

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        from plait_bytecode_tracer.objects.operations import apply, same, truth

        theirs = key_variable(other)
        if same(self.variable, theirs):
            return True
        try:
            return truth(self.frame, apply(self.frame, operator.eq, [self.variable, theirs]))
        except TraceBreakError as error:  # the frame that made the key may be gone
            raise TraceBreakError(error.kind.code, error.reason) from None


_EFFECTS = ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_DEREF", "DELETE_ATTR",
            "DELETE_SUBSCR", "DELETE_GLOBAL", "IMPORT_NAME")  # fmt: skip

_CHANGING = frozenset(
    {
        *("print", "append", "appendleft", "extend", "insert", "add", "update", "setdefault"),
        *("pop", "popitem", "popleft", "remove", "discard", "clear", "write", "setattr"),
    }
)
"""Names of functions and methods with effects."""


def refuse_effects(key: HashedKey) -> None:
    """Break where a key's hash or equality changes something.

    A dict or set that leaves the trace is filled again, which asks for them once more.
    """
    cls = type_of(key.variable)
    for name in ("__hash__", "__eq__"):
        method = static_attribute(cls, name)
        if not isinstance(method, types.FunctionType):
            continue
        instructions, _ = instructions_of(method.__code__)
        if any(each.opname in _EFFECTS or each.argval in _CHANGING for each in instructions):
            text = f"a key whose {name} has effects, in a dict or set that leaves the traced code"
            raise TraceBreakError("GB0009", text)


def constant_key(frame: Frame, value: Variable) -> Any:
    """A variable as a dict key or set element."""
    match value:
        case SymbolVariable():
            return constant_key(frame, Known(value.owner.specialise(value)))
        case ReferenceVariable():
            return _reference_key(frame, value)
        case Known(real) if is_a(real, weakref.ref):
            return _reference_key(frame, value)
        case HookNumber():
            return constant_key(frame, value.settled())
        case FunctionVariable(original=function) if function is not None:
            return constant_key(frame, settled(frame.state, value))
        case TensorVariable() | FunctionVariable() | IteratorVariable() | CallableVariable():
            return _by_identity(frame, value)
        case IdVariable(inner):
            return IdKey(value, _by_identity(frame, inner))
        case SequenceVariable(kind=kind) if issubclass(kind, tuple):
            return _group(value, tuple(constant_key(frame, item) for item in value.items))
        case SetVariable(kind=kind) if kind is frozenset:
            return _group(value, frozenset(value.items))
        case SequenceVariable() | DictVariable() | SetVariable():
            _unhashable(value.kind)
        case Known(real):
            if is_nan(real):
                raise TraceBreakError("GB0009", "NaN as a key, which is found by its identity")
            if is_constant(real) or is_a(real, _DEFINITIONS):
                return real
            if type(real) is tuple:
                held = SequenceVariable([Known(item) for item in real], tuple)
                return constant_key(frame, held)
            return _object_key(frame, value, type(real))
        case ObjectVariable(cls=cls):
            return _object_key(frame, value, cls)
    raise TraceBreakError("GB0009", f"a {describe(value)} as a key")


def _reference_key(frame: Frame, value: Variable) -> ObjectKey:
    """A weak reference, which is a key as its object is."""
    from plait_bytecode_tracer.rules.weak import referent

    found = referent(frame, value)
    if isinstance(found, Known) and found.value is None:
        raise TraceBreakError("GB0017", "the hash of a weak reference to an object that is dead")
    return ReferenceKey(value, constant_key(frame, found))


def keys_of(frame: Frame, values: Variable) -> Iterator[Any]:
    """The elements of a value as keys; those of a dict or set are not asked for again."""
    if isinstance(values, DictVariable | SetVariable):
        yield from list(values.items)
        return
    for item in elements(frame, values):
        yield constant_key(frame, item)


_SETS = (set, frozenset)


def set_operand(frame: Frame, values: Variable) -> Any:
    """The elements of what a set takes, as a collection of the kind that it goes through.

    Of a set or dict it takes the hashes too, and makes room for all at once. Of a class that
    inherits from set it takes what is stored, whatever that says of iterating.
    """
    if isinstance(values, ObjectVariable | Known) and issubclass(type_of(values), _SETS):
        values = storage_of(frame, values) or values
    if isinstance(values, SetVariable):
        return values.items
    if isinstance(values, Known) and type(values.value) is frozenset and is_constant(values.value):
        return values.value
    found = keys_of(frame, values)
    is_dict = isinstance(values, DictVariable) and values.kind is dict
    return dict.fromkeys(found) if is_dict else found


def searched_key(frame: Frame, value: Variable) -> Any:
    """What is looked for in a set, where a set stands for the frozenset of its elements."""
    try:
        return constant_key(frame, value)
    except PythonError as error:
        held = storage_of(frame, value) if isinstance(value, ObjectVariable | Known) else value
        is_set = isinstance(held, SetVariable) and held.kind is set
        if not is_set or not issubclass(exception_class(error.value), TypeError):
            raise
    assert isinstance(held, SetVariable)
    return constant_key(frame, SetVariable(set(held.items), kind=frozenset))


def _unhashable(kind: type) -> NoReturn:
    fails(TypeError, f"unhashable type: {name_in_errors(kind)!r}")


def _group(value: SequenceVariable | SetVariable, parts: Any) -> Any:
    """A tuple or frozenset as a key, by its elements' keys."""
    if not any(isinstance(part, ObjectKey) for part in parts):
        if value.kind in (tuple, frozenset):
            return parts
        return GroupKey(value, parts)
    return GroupKey(value, parts)


def _by_identity(frame: Frame, value: Variable) -> ObjectKey:
    """An object that is equal to itself only."""
    keep_distinct(frame, value)
    return ObjectKey(value)


def keep_distinct(frame: Frame, value: Variable) -> None:
    """Guard that an object from outside differs, in each call, from the others given here."""
    source = getattr(value, "source", None)
    if source is not None:
        frame.state.world.distinct.setdefault(source.code, (source, value))


def _object_key(frame: Frame, value: Variable, cls: type) -> Any:
    own = (static_attribute(cls, "__eq__"), static_attribute(cls, "__hash__"))
    if own[1] is None:
        _unhashable(type_of(value) if isinstance(value, ObjectVariable) else cls)
    if own == _BY_IDENTITY:
        return _by_identity(frame, value)
    if isinstance(own[1], types.FunctionType):
        return HashedKey(frame, value, _hash_of(frame, value))
    storage = storage_of(frame, value)
    if storage is not None and isinstance(own[1], types.WrapperDescriptorType):
        return HashedKey(frame, value, hash(constant_key(frame, storage)))
    if isinstance(value, Known) and is_fixed(value.value):
        return value.value
    if own[1] is _BY_IDENTITY[1]:  # with an equality of its own, that was given a hash
        return HashedKey(frame, value, id(value.value) if isinstance(value, Known) else id(value))
    raise TraceBreakError("GB0009", f"a {cls.__name__} as a key")


def _hash_of(frame: Frame, value: Variable) -> int:
    """What the object's `__hash__` returns."""
    method = special_method(frame, value, "__hash__")
    assert method is not None
    found = frame.call(method, [], {})
    if not isinstance(found, Known) or not isinstance(found.value, int):
        fails(TypeError, "__hash__ method should return an integer")
    given = stand_in(type_of(value), {"__hash__": lambda self: found.value})
    return hash(given)


def key_object(value: Variable) -> object:
    """What the identity of a key from outside is told by."""
    if isinstance(value, TensorVariable):
        return value.original if value.original is not None else value
    return value.value if isinstance(value, Known) else value
