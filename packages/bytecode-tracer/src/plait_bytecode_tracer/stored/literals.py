"""Constants as JSON: values that are the same in each process, to the last bit.

Text, integers, bools and None are themselves, all else is a list that begins with its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.stored.errors import DiffersError, NotStoredError

_PLAIN = (type(None), bool, str, int)
_LONGEST = 2000
"""How many bits an int has at most: Python reads and writes those whatever its limit is."""
_NAMED: dict[type, str] = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory format",
}
"""Objects of torch's that are attributes of it, each one of its kind."""
_OF_TORCH = {kind: cls for cls, kind in _NAMED.items()}
_SEQUENCES: dict[type, str] = {tuple: "tuple", torch.Size: "size"}
_BUILDERS: dict[str, Callable[..., Any]] = {"tuple": tuple, "size": torch.Size}


def is_literal(value: object) -> bool:
    """Whether a value can be written as JSON."""
    try:
        literal(value)
    except NotStoredError:
        return False
    return True


def literal(value: Any) -> Any:
    """A constant as JSON. Raises NotStoredError for what is none, and for NaN and sets: programs
    tell the former apart by identity, the latter by an order that each process has for itself."""
    kind = type(value)
    if kind in _PLAIN:
        if kind is int and value.bit_length() > _LONGEST:
            raise NotStoredError("a very long integer")
        return value
    if kind is float and value == value:
        return ["float", value.hex()]
    if kind is complex and value == value:
        return ["complex", value.real.hex(), value.imag.hex()]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], [literal(item) for item in value]]
    if kind in _NAMED:
        return [_NAMED[kind], str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["device", str(value)]
    if kind in (slice, range):
        return [kind.__name__, *(literal(part) for part in (value.start, value.stop, value.step))]
    if value is Ellipsis:
        return ["ellipsis"]
    if value is NotImplemented:
        return ["not implemented"]
    raise NotStoredError(f"the value of a {kind.__module__}.{kind.__qualname__}")


def value_of(data: Any) -> Any:
    """The constant that was written as JSON. Raises DiffersError for anything else."""
    if type(data) in _PLAIN:
        return data
    if type(data) is not list or not data:
        raise DiffersError("a constant that is none")
    try:
        return _value_of(*data)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DiffersError(f"a constant that is none: {error}") from error


def _value_of(kind: Any, *parts: Any) -> Any:
    match kind, parts:
        case "float", (str() as text,):
            return float.fromhex(text)
        case "complex", (str() as real, str() as imaginary):
            return complex(float.fromhex(real), float.fromhex(imaginary))
        case "bytes", (str() as text,):
            return bytes.fromhex(text)
        case (("tuple" | "size"), (list() as items,)):
            return _BUILDERS[kind](map(value_of, items))
        case (("dtype" | "layout" | "memory format"), (str() as name,)):
            found = vars(torch).get(name)
            if type(found) is _OF_TORCH[kind]:
                return found
        case "device", (str() as name,):
            return torch.device(name)
        case "slice", (start, stop, step):
            return slice(value_of(start), value_of(stop), value_of(step))
        case "range", (int() as start, int() as stop, int() as step):
            return range(start, stop, step)
        case "ellipsis", ():
            return ...
        case "not implemented", ():
            return NotImplemented
    raise DiffersError("a constant of an unknown kind")
