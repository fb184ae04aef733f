"""What a class defines, as attribute look-up on its instances sees it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, TypeGuard

_DATA = types.GetSetDescriptorType | types.MemberDescriptorType


def is_a(value: object, classes: Any) -> TypeGuard[Any]:
    """Whether an object is an instance by its type.

    `isinstance` asks objects of other classes for `__class__`, which the program may define.
    """
    return issubclass(type(value), classes)


def table_of(value: object) -> Mapping[str, Any]:
    """The `__dict__` of an object, past what its class would do; an empty one if it has none."""
    try:
        table: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return table


def is_asked(cls: type) -> bool:
    """Whether Python code of a class finds all attributes of its instances."""
    found = (base.__dict__ for base in cls.__mro__ if "__getattribute__" in base.__dict__)
    return isinstance(next(found)["__getattribute__"], types.FunctionType)


def is_defined(cls: type, name: str) -> bool:
    """Whether instances have an attribute by their class: `hasattr(cls, name)` asks `type` too."""
    return any(name in base.__dict__ for base in cls.__mro__)


def is_field(cls: type, name: str) -> bool:
    """Whether C keeps an attribute of instances, whatever their dict holds under its name."""
    found = (base.__dict__[name] for base in cls.__mro__ if name in base.__dict__)
    return isinstance(next(found, None), _DATA)


def has_plain_names(cls: type) -> bool:
    """Whether all that a class and its bases define has texts as names, which ask nothing."""
    return all(type(name) is str for base in cls.__mro__ for name in base.__dict__)


def is_compiled_by_torch(function: types.FunctionType) -> bool:
    """Whether a function is what `torch.compile` makes of one."""
    made = function.__code__.co_name == "compile_wrapper"
    return made and function.__globals__.get("__name__") == "torch._dynamo.eval_frame"
