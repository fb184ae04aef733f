"""What `__tensor_flatten__` says beside tensors, as something to compare.

What the program makes holds the context of the call that was traced. So constants count by their
values, and objects by which they are and what they hold; what each call of `__tensor_flatten__`
makes anew, such as a dict of options, counts by what it holds.
"""

from __future__ import annotations

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


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """A context, or a part of one.

    ``parts`` are what a container or object holds, in order; ``itself`` is an object that counts
    by which it is, ``kind`` its class, ``key`` what a constant equals.
    """

    kind: type
    key: object = None
    itself: object = None
    is_fresh: bool = True
    names: tuple[object, ...] = ()
    parts: tuple[Context, ...] = ()

    def holds(self, other: Any) -> bool:
        """Whether a context is the same."""
        if type(other) is self.kind and _says_layout(other):
            return bool(other == self.itself)
        if type(other) is not self.kind or not (self.is_fresh or other is self.itself):
            return False
        if is_a(other, _VALUES):
            return exact_key(other) == self.key
        names, parts = _held(other)
        if names != self.names or len(parts) != len(self.parts):
            return False
        return all(part.holds(each) for part, each in zip(self.parts, parts, strict=True))


def context_of(context: object, again: object) -> Context:
    """What a context is, from two that one wrapper gave.

    Raises TraceBreakError where what it consists of cannot be compared.
    """
    return _context(context, again, 0)


def _context(one: Any, two: Any, depth: int) -> Context:
    kind = type(one)
    if is_a(one, _VALUES) and exact_key(one) == exact_key(two):
        return Context(kind, exact_key(one))
    if _says_layout(one) and one == two:
        return Context(kind, itself=one)
    names, parts = _held(one)
    other_names, others = _held(two)
    if kind is not type(two) or names != other_names or len(parts) != len(others):
        raise TraceBreakError("GB0009", "a tensor subclass that says something else each time")
    if depth > _DEEPEST:
        raise TraceBreakError("GB0009", "a tensor subclass that says too much of itself")
    made = tuple(_context(a, b, depth + 1) for a, b in zip(parts, others, strict=True))
    if one is two and kind not in (tuple, torch.Size):
        return Context(kind, itself=one, is_fresh=False, names=names, parts=made)
    if kind not in _CONTAINERS and not dataclasses.is_dataclass(one):
        raise TraceBreakError("GB0009", f"a tensor subclass that makes a {kind.__name__} each time")
    return Context(kind, names=names, parts=made)


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
    table = getattr(value, "__dict__", None)
    of_torch = type(value).__module__.startswith("torch.") and not dataclasses.is_dataclass(value)
    if of_torch or is_a(value, type) or callable(value) or type(table) is not dict:
        return (), ()  # such as a DeviceMesh, which does not change
    return tuple(table), list(table.values())


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
