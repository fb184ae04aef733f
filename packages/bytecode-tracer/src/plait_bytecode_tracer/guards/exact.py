"""Equality that tells apart what programs tell apart: types, signed zeros, range bounds."""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Hashable, Iterable
from typing import Any

_PLAIN = (str, int)
"""Types whose values are the same if they are equal."""


def exact_key(value: object) -> Hashable:
    """A key that two constants share only if no program can tell their values apart.

    `1`, `1.0` and `True` have different keys, as have `0.0` and `-0.0`; NaN have that
    of their bits. The elements of tuples, frozensets, slices and ranges count in the same way.
    """
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(kind, "tobytes"):
        return kind, _numpy_key(value)
    match value:
        case float():
            return kind, _float_key(value)
        case complex():
            return kind, _float_key(value.real), _float_key(value.imag)
        case tuple():
            return kind, tuple(map(exact_key, value))
        case frozenset():
            return kind, frozenset(map(exact_key, value))
        case slice() | range():
            return kind, exact_key(value.start), exact_key(value.stop), exact_key(value.step)
        case datetime.datetime() | datetime.time():  # zones and folds that are equal differ
            return kind, repr(value)
    return kind, value


def _numpy_key(value: Any) -> Hashable:
    """A scalar of NumPy by its memory; all NaN of a class are one here too."""
    is_nan = value.dtype.kind == "f" and value != value
    return str(value.dtype), "nan" if is_nan else value.tobytes()


def _float_key(value: float) -> Hashable:
    if math.isnan(value):
        return struct.pack("d", value)  # a sign is in it, and more
    return value, math.copysign(1.0, value)


def same_constant(one: object, other: object) -> bool:
    """Whether two constants are equal in type and value; see `exact_key`."""
    return type(one) is type(other) and exact_key(one) == exact_key(other)


ABSENT = object()
"""What stands for an attribute that a class does not have."""


def class_attribute(cls: type, name: str) -> object:
    """What a class or its bases define under a name, as it stands there, or ABSENT."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return ABSENT


def same_order(values: Iterable[object], expected: tuple[object, ...]) -> bool:
    """Whether iterating over a container gives these constants in this order.

    `values` is a dict, for its keys, a set, or an iterator of either.
    """
    found = tuple(values)
    if found != expected or list(map(type, found)) != list(map(type, expected)):
        return False
    return all(type(v) in _PLAIN for v in found) or all(map(same_constant, found, expected))
