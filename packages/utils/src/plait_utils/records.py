"""`dataclasses.dataclass` with methods that all classes share.

The standard decorator writes and compiles up to six functions for each class. For the hundreds of
classes of a compiler these are two megabytes and a sixth of a warm start. Here a class gets an
`__init__` of its own, when it is first asked for, and nothing else.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_FIELDS = "__dataclass_fields__"
_MISSING: Any = dataclasses.MISSING


def _record(
    cls: type[Any] | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    repr: bool = True,
) -> Any:
    """What `dataclasses.dataclass` makes of a class with these options.

    Instances behave alike: initialization, `__post_init__`, comparison and hashes of fields in
    their order, `FrozenInstanceError`, copies, pickles, patterns, `fields` and `replace`. The class
    gets no text as `__doc__` where it has none; there are no pseudo-fields (`InitVar`, `KW_ONLY`),
    and annotations are text (`from __future__ import annotations`). A class inherits from classes
    that are made alike, not from a frozen one of the standard library.
    """

    def decorate(cls: type[Any]) -> type[Any]:
        own = _own_fields(cls)
        inherited = (base.__dict__.get(_FIELDS, {}) for base in reversed(cls.__mro__[1:]))
        fields = {name: each for of in (*inherited, own) for name, each in of.items()}
        members = _shared_methods(cls, [*fields.values()], frozen, slots, eq, repr)
        if "__match_args__" not in cls.__dict__:
            members["__match_args__"] = tuple(each.name for each in fields.values() if each.init)
        members |= {_FIELDS: fields, **_MARKS}
        initializer = None if "__init__" in cls.__dict__ else _Initializer(frozen)
        if initializer is not None:
            members["__init__"] = initializer
        if slots:
            return _with_slots(cls, tuple(own), members)
        for name, each in own.items():
            if each.default is not _MISSING:
                setattr(cls, name, each.default)
            elif name in cls.__dict__:
                delattr(cls, name)
        for name, value in members.items():
            setattr(cls, name, value)
        if initializer is not None:
            initializer.__set_name__(cls, "__init__")
        return cls

    return decorate if cls is None else decorate(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _record


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Standard:
    """A class of the standard library's, for what it marks its classes with."""

    field: int


_IS_FIELD = _Standard.__dict__[_FIELDS]["field"]._field_type
_MARKS = {
    name: _Standard.__dict__[name]
    for name in ("__dataclass_params__", "__replace__")
    if name in _Standard.__dict__
}


def _own_fields(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The fields that the class itself declares, in their order."""
    fields: dict[str, dataclasses.Field[Any]] = {}
    for name, annotation in inspect.get_annotations(cls).items():
        if annotation.startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = cls.__dict__.get(name, _MISSING)
        made: Any = default
        if not isinstance(default, dataclasses.Field):
            made = dataclasses.field(default=default)
            if type(default).__hash__ is None:
                raise ValueError(f"{cls.__name__}.{name} needs a default_factory")
        made.name, made.type, made._field_type, made.kw_only = name, annotation, _IS_FIELD, False
        fields[name] = made
    return fields


def _with_slots(cls: type[Any], names: tuple[str, ...], members: dict[str, Any]) -> type[Any]:
    """The class again, with these members and slots for these fields."""
    taken = {slot for base in cls.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    left_out = {*names, "__dict__", "__weakref__"}
    kept = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    slots = tuple(name for name in names if name not in taken)
    members = {**kept, **members, "__slots__": slots, "__qualname__": cls.__qualname__}
    kind: Any = type(cls)
    made: type[Any] = kind(cls.__name__, cls.__bases__, members)
    return made


def _shared_methods(
    cls: type[Any],
    fields: list[dataclasses.Field[Any]],
    frozen: bool,
    slots: bool,
    eq: bool,
    repr: bool,
) -> dict[str, Any]:
    """What a class with such options has besides `__init__`, where it has not defined it."""
    defined = frozenset(cls.__dict__)
    made: dict[str, Any] = {}
    if repr:
        made["__repr__"] = _repr
    if eq:
        made["__eq__"] = _equality(_values([f.name for f in fields if f.compare]))
        hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
        made["__hash__"] = _hashing(_values(hashed)) if frozen else None
    if frozen and slots:
        made |= {"__getstate__": _state, "__setstate__": _set_state}
    if "__eq__" in defined and cls.__dict__.get("__hash__") is None:
        defined -= {"__hash__"}  # which Python itself has set to None
    made = {name: value for name, value in made.items() if name not in defined}
    if frozen:
        made |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    return made


class _Initializer:
    """Stands for a class's `__init__` until that is asked for, and then gives place to it.

    Most classes of a compiler are never used in one run, and compiling a function takes longer
    than making a class.
    """

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen
        self._of: type[Any] | None = None
        self._name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._of, self._name = owner, f"{owner.__qualname__}.{name}"

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        assert self._of is not None
        function = _initializer(self._of, self._name, self._frozen)
        self._of.__init__ = function
        return function.__get__(instance, owner)


def _values(names: list[str]) -> Callable[[object], Any]:
    """A function that returns the values of these attributes as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return operator.attrgetter(*names, "__class__", "__class__")


def _initializer(cls: type[Any], name: str, frozen: bool) -> Callable[..., None]:
    """The `__init__` that assigns the fields in their order."""
    names: dict[str, Any] = {"_given": _MISSING, "_set": object.__setattr__}
    arguments, body = [], []
    for field in dataclasses.fields(cls):
        argument, value = _argument_and_value(field, names)
        if argument is not None:
            arguments.append(argument)
        if value is not None:
            assign = f"_set(_self, {field.name!r}, {value})"
            body.append(assign if frozen else f"_self.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("_self.__post_init__()")
    lines = "\n ".join(body or ["pass"])
    made: dict[str, Any] = {}
    exec(f"def __init__({', '.join(['_self', *arguments])}):\n {lines}", names, made)
    function: Callable[..., None] = made["__init__"]
    function.__qualname__ = name
    function.__module__ = cls.__module__
    return function


def _argument_and_value(
    field: dataclasses.Field[Any], names: dict[str, Any]
) -> tuple[str | None, str | None]:
    """The text of a field's parameter and of the value that it is assigned, None for neither;
    `names` gets what they name."""
    name, default, factory = field.name, f"_default_{field.name}", f"_make_{field.name}"
    if field.default_factory is not _MISSING:
        names[factory] = field.default_factory
        if not field.init:
            return None, f"{factory}()"
        return f"{name}=_given", f"{factory}() if {name} is _given else {name}"
    if field.default is not _MISSING:
        names[default] = field.default
        return (f"{name}={default}", name) if field.init else (None, default)
    return (name, name) if field.init else (None, None)


def _repr(self: Any) -> str:
    kind = type(self)
    parts = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr]
    return f"{kind.__qualname__}({', '.join(parts)})"


def _equality(values: Callable[[object], Any]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hashing(values: Callable[[object], Any]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    if _is_kept(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    if _is_kept(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_kept(self: Any, name: str) -> bool:
    """Whether an attribute is a field; plain classes that inherit from frozen ones have others."""
    return _FIELDS in type(self).__dict__ or name in getattr(self, _FIELDS)


def _state(self: Any) -> list[Any]:
    """Without a dict of attributes, which pickles and copies would take."""
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
