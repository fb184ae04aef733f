"""What `__tensor_flatten__` says beside tensors, as something to compare.

What the program makes holds the context of the call that was traced. So constants count by their
values, and objects by which they are and what they hold; what each call of `__tensor_flatten__`
makes anew, such as a dict of options, counts by what it holds.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import exact_key
from plait_bytecode_tracer.values.lookup import is_a

_VALUES = (
    *(int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.layout),
    *(torch.memory_format, enum.Enum, type(Ellipsis)),
)
_DEEPEST = 8
_UNCHANGING = (tuple, torch.Size)
"""What holds the same things always."""
_NONE = object()


class Context(abc.ABC):
    """A context, or a part of one.

    ``unchanging`` is the object that this was found of, if nothing of it ever changes: that it is
    there again needs no look at what it consists of.
    """

    __slots__ = ()
    unchanging: object

    @abc.abstractmethod
    def holds(self, other: Any) -> bool:
        """Whether a context is the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Equal(Context):
    """A constant, which counts by its value."""

    unchanging: object
    key: object

    def holds(self, other: Any) -> bool:
        return type(other) is type(self.unchanging) and exact_key(other) == self.key


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout(Context):
    """What says how a DTensor lies over processes, and counts by what it equals."""

    unchanging: object

    def holds(self, other: Any) -> bool:
        return type(other) is type(self.unchanging) and bool(other == self.unchanging)


@dataclasses.dataclass(frozen=True, slots=True)
class _Holding(Context):
    """A container or object, by its class and what it holds, in order; and by which it is, if
    ``itself`` is one."""

    kind: type
    names: tuple[object, ...]
    parts: tuple[Context, ...]
    itself: object = _NONE
    unchanging: object = _NONE

    def holds(self, other: Any) -> bool:
        if type(other) is not self.kind or (self.itself is not _NONE and self.itself is not other):
            return False
        names, parts = _held(other)
        if names != self.names or len(parts) != len(self.parts):
            return False
        for part, each in zip(self.parts, parts, strict=True):
            if each is not part.unchanging and not part.holds(each):
                return False
        return True


def context_of(context: object, again: object) -> Context:
    """What a context is, from two that one wrapper gave.

    Raises TraceBreakError where what it consists of cannot be compared.
    """
    return _context(context, again, 0)


def _context(one: Any, two: Any, depth: int) -> Context:
    kind = type(one)
    if is_a(one, _VALUES) and exact_key(one) == exact_key(two):
        return _Equal(one, exact_key(one))
    if _says_layout(one) and one == two:
        return _Layout(one)
    names, parts = _held(one)
    other_names, others = _held(two)
    if kind is not type(two) or names != other_names or len(parts) != len(others):
        raise TraceBreakError("GB0009", "a tensor subclass that says something else each time")
    if depth > _DEEPEST:
        raise TraceBreakError("GB0009", "a tensor subclass that says too much of itself")
    made = tuple(_context(a, b, depth + 1) for a, b in zip(parts, others, strict=True))
    found = _Holding(kind, names, made)
    if kind in _UNCHANGING:
        is_settled = all(part.unchanging is not _NONE for part in made)
        return dataclasses.replace(found, unchanging=one) if is_settled else found
    if one is two:
        unchanging = one if _is_opaque(one) else _NONE
        return dataclasses.replace(found, itself=one, unchanging=unchanging)
    if kind not in _CONTAINERS and not dataclasses.is_dataclass(one):
        raise TraceBreakError("GB0009", f"a tensor subclass that makes a {kind.__name__} each time")
    return found


def _says_layout(value: object) -> bool:
    """Whether an object says how a DTensor lies over processes: each has its own, and they count by
    what they equal. The mesh of devices counts by which it is: another has other groups."""
    kind = type(value)
    if kind.__module__ == "torch.distributed.tensor._dtensor_spec":
        return kind.__name__ in ("TensorMeta", "ShardOrderEntry")
    return kind.__module__ == "torch.distributed.tensor.placement_types"


def _held(value: Any) -> tuple[tuple[object, ...], Sequence[Any]]:
    """What an object holds, and under which names; nothing for what counts by which it is."""
    if is_a(value, torch.Tensor):
        raise TraceBreakError("GB0009", "a tensor subclass that says something of other tensors")
    take = _CONTAINERS.get(type(value))
    if take is not None:
        return take(value)
    if _is_opaque(value):
        return (), ()
    table = vars(value)
    return tuple(table), list(table.values())


def _is_opaque(value: Any) -> bool:
    """Whether an object counts by which it is alone, as a DeviceMesh, which does not change."""
    if type(value) in _CONTAINERS:
        return False
    of_torch = type(value).__module__.startswith("torch.") and not dataclasses.is_dataclass(value)
    if of_torch or is_a(value, type) or callable(value):
        return True
    return type(getattr(value, "__dict__", None)) is not dict


def _listed(value: Any) -> tuple[tuple[object, ...], Sequence[Any]]:
    return (), list(value)


def _paired(value: Any) -> tuple[tuple[object, ...], Sequence[Any]]:
    return tuple(map(exact_key, value)), list(value.values())


_CONTAINERS: dict[type, Callable[[Any], tuple[tuple[object, ...], Sequence[Any]]]] = {
    tuple: _listed,
    torch.Size: _listed,
    list: _listed,
    set: _listed,
    frozenset: _listed,
    dict: _paired,
}
