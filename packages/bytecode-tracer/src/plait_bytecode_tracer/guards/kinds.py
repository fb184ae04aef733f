"""The kinds of guards: what each assumes, and the values that it carries."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any

import torch

from plait_bytecode_tracer.guards.exact import same_constant
from plait_bytecode_tracer.shapes.expressions import Applied, Computed, Leaf, leaves, render
from plait_bytecode_tracer.values.sources import Source
from plait_utils import dataclass


class Kind(Enum):
    """What a guard assumes of its source; `expected` is what the comment says."""

    __hash__ = object.__hash__  # Enum's own is Python, and guards are looked up often

    IDENTITY = "identity"
    """It is this object."""
    TYPE = "type"
    """Its type is exactly this class."""
    EQUAL = "equal"
    """It equals this constant, as `exact.same_constant` compares."""
    LENGTH = "length"
    """`len()` of it is this int."""
    KEYS = "keys"
    """Iterating over the dict or set gives this tuple of constants, in order."""
    LACKS = "lacks"
    """The dict has no such key."""
    HAS = "has"
    """The dict has this key."""
    NO_ATTRIBUTE = "no attribute"
    """It has no attribute of this name."""
    CLASS_ATTRIBUTE = "class attribute"
    """It is a class that defines under this name just this object, or `exact.ABSENT`: a pair."""
    METHOD = "method"
    """It is a method of this function bound to this object: a pair."""
    FUNCTION = "function"
    """It is a function with this code, defaults and keyword defaults: a triple of objects."""
    TENSOR = "tensor"
    """It is a tensor with these `TensorFacts`."""
    ARRAY = "array"
    """It is an object with a buffer that can be written to, of elements of this format."""
    SAME_OBJECT = "same object"
    """It is the same object as this other source."""
    STORAGE_PATTERN = "storage pattern"
    """These tensors share storage in this `StoragePattern`; the guard has no source."""
    RELATION = "relation"
    """This `Relation` of sizes and numbers holds; the guard has no source."""
    DISTINCT = "distinct"
    """No two of these are one object, a `Distinct`; the guard has no source."""
    MODE = "mode"
    """This `Mode` of the process holds; the guard has no source."""
    TENSOR_VALUE = "tensor value"
    """What this `TensorValue` computes of tensors is as it was; the guard has no source."""
    PYTHON = "python"
    """This Python condition holds; `{}` in it stands for the source, if there is one."""


@dataclass(frozen=True, slots=True)
class Range:
    """A size that may be any int between these, both included; no upper bound is None."""

    low: int
    high: int | None = None

    def __contains__(self, value: int) -> bool:
        return value >= self.low and (self.high is None or value <= self.high)

    def __repr__(self) -> str:
        return f"{self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """The metadata of a tensor."""

    cls: type
    dtype: torch.dtype
    shape: tuple[int | Range, ...]
    stride: tuple[int | None, ...]
    """In elements; None for any, which a relation then says more of."""
    device: torch.device
    requires_grad: bool | None
    """None where nothing depends on it."""


@dataclass(frozen=True, slots=True)
class StoragePattern:
    """Which tensors share storage, and where they begin in it, as `storage_pattern` tells."""

    sources: tuple[Source, ...]
    pattern: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TensorValue:
    """What a small computation gives, of tensors that it does not change."""

    sources: tuple[Source, ...]
    evaluate: Callable[..., object]
    """Takes the tensors."""
    value: object
    """What it gave, as `plain_constant` has it."""
    key: str
    """Tells computations apart: those with one key give one value for the same tensors."""

    def holds(self, *tensors: object) -> bool:
        """Whether the computation gives again what it gave."""
        return same_constant(plain_constant(self.evaluate(*tensors)), self.value)


def plain_constant(value: object) -> object:
    """A number, or a list of numbers as a tuple."""
    return tuple(map(plain_constant, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Relation:
    """A condition over numbers of the call: `expression` gives a true value."""

    expression: Applied

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The numbers, each once."""
        found = dict.fromkeys(leaves(self.expression))
        return tuple(leaf for leaf in found if isinstance(leaf, Leaf))

    @property
    def sources(self) -> tuple[Source, ...]:
        """What the numbers are read from, each once."""
        return tuple({leaf.source.code: leaf.source for leaf in self.leaves}.values())

    def code(self, value: Callable[[Source], str], name: Callable[[object], str]) -> str:
        """The condition as Python; `value` names the values of sources."""

        def read(leaf: Leaf | Computed) -> str:
            assert isinstance(leaf, Leaf), "guards are checked before the graph runs"
            return leaf.code(value(leaf.source))

        return render(self.expression, read, name)

    def key(self) -> str:
        """What tells it from other relations."""
        return self.code(lambda source: source.code, lambda found: f"<{id(found)}>")


@dataclass(frozen=True, slots=True)
class Distinct:
    """Objects that the trace took for different ones: it wrote to one, or they are keys."""

    sources: tuple[Source, ...]

    def holds(self, *values: object) -> bool:
        """Whether all are different objects."""
        return len(set(map(id, values))) == len(values)


@dataclass(frozen=True, slots=True)
class Mode:
    """A function without arguments, and what it returned."""

    function: object
    value: object


def storage_pattern(tensors: tuple[torch.Tensor, ...]) -> tuple[tuple[int, int], ...]:
    """For each tensor, the first that shares its storage, and how far behind it begins (bytes)."""
    pointers = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    if len(set(pointers)) == len(pointers):
        return _all_apart(len(pointers))
    firsts: dict[int, int] = {}
    for index, pointer in enumerate(pointers):
        firsts.setdefault(pointer, index)
    return tuple(
        (first, tensor.data_ptr() - tensors[first].data_ptr())
        for first, tensor in zip(map(firsts.__getitem__, pointers), tensors, strict=True)
    )


@lru_cache(64)
def _all_apart(count: int) -> tuple[tuple[int, int], ...]:
    return tuple((index, 0) for index in range(count))


def array_format(value: Any) -> str | None:
    """What the elements of an object's buffer are, as NumPy writes it; None if it is read-only.

    For NumPy arrays it tells dtypes apart, byte orders, and whether elements are aligned.
    """
    view = memoryview(value)
    return None if view.readonly else view.format


def holds_sizes(value: torch.Tensor, facts: TensorFacts) -> bool:
    """Whether a tensor has the sizes and strides of some facts."""
    if value.dim() != len(facts.shape):
        return False
    sizes = zip(value.shape, facts.shape, strict=True)
    strides = zip(value.stride(), facts.stride, strict=True)
    return all(
        size in wanted if isinstance(wanted, Range) else size == wanted for size, wanted in sizes
    ) and all(wanted is None or stride == wanted for stride, wanted in strides)


def tensor_facts(value: torch.Tensor, *, with_grad: bool) -> TensorFacts:
    """What a guard says of a tensor."""
    return TensorFacts(
        type(value),
        value.dtype,
        tuple(value.shape),
        tuple(value.stride()),
        value.device,
        value.requires_grad if with_grad else None,
    )
