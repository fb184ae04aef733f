"""What a class defines, as attribute look-up on its instances sees it."""

from __future__ import annotations


def is_defined(cls: type, name: str) -> bool:
    """Whether instances have an attribute by their class: `hasattr(cls, name)` asks `type` too."""
    return any(name in base.__dict__ for base in cls.__mro__)
