"""What a class defines, as attribute look-up on its instances sees it."""

from __future__ import annotations

import types

_DATA = types.GetSetDescriptorType | types.MemberDescriptorType


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
