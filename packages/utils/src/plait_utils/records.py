"""`dataclasses.dataclass` with methods that all classes share.

The standard decorator writes and compiles up to six functions for each class. For the hundreds of
classes of a compiler these are two megabytes and a tenth of a warm start. Here a class gets an
`__init__` of its own and nothing else.
"""

from __future__ import annotations

import dataclasses
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
    gets no text as `__doc__` where it has none; there are no pseudo-fields (`InitVar`). A class
    inherits from classes that are made alike, not from a frozen one of the standard library.
    """

    def decorate(cls: type[Any]) -> type[Any]:
        defined = frozenset(cls.__dict__)
        documented = cls.__doc__
        cls.__doc__ = documented or cls.__name__  # else the standard library writes one, slowly
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        made.__doc__ = documented
        shared = _shared_methods(made, defined, frozen, slots, eq, repr)
        if "__init__" not in defined:
            shared["__init__"] = _initializer(made, frozen)
        for name, value in shared.items():
            setattr(made, name, value)
        return made

    return decorate if cls is None else decorate(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _record


def _shared_methods(
    cls: type[Any], defined: frozenset[str], frozen: bool, slots: bool, eq: bool, repr: bool
) -> dict[str, Any]:
    """What a class with such options has besides `__init__`, where it has not defined it."""
    made: dict[str, Any] = {}
    if repr:
        made["__repr__"] = _repr
    if eq:
        fields = dataclasses.fields(cls)
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


def _values(names: list[str]) -> Callable[[object], Any]:
    """A function that returns the values of these attributes as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return operator.attrgetter(*names, "__class__", "__class__")


def _initializer(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """The `__init__` that assigns the fields in their order."""
    names: dict[str, Any] = {"_given": _MISSING, "_set": object.__setattr__}
    arguments, body = [], []
    for field in dataclasses.fields(cls):
        argument, value = _argument_and_value(field, names)
        if argument is not None:
            arguments.append(argument)
        if value is not None:
            name = field.name
            assign = f"_set(_self, {name!r}, {value})" if frozen else f"_self.{name} = {value}"
            body.append(assign)
    if hasattr(cls, "__post_init__"):
        body.append("_self.__post_init__()")
    lines = "\n ".join(body or ["pass"])
    made: dict[str, Any] = {}
    exec(f"def __init__({', '.join(['_self', *arguments])}):\n {lines}", names, made)
    function: Callable[..., None] = made["__init__"]
    function.__qualname__ = f"{cls.__qualname__}.__init__"
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
