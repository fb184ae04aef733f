"""Dicts of the caller whose keys are objects that are equal to themselves only: tensors, modules.

Such a key is looked up by the source of the object that the traced code asks for, so that
each call asks for its own object.
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import Kind, same_order
from plait_bytecode_tracer.values.constants import is_constant, is_nan
from plait_bytecode_tracer.values.set_order import like
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, ObjectKey, Variable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_MAX_KEYS = 64
"""How many keys that are objects are gone through; the n-th is found in n steps."""


class ReferenceKey(ObjectKey):
    """A weak reference to an object that is alive: references to one object are equal."""

    __slots__ = ("inner",)

    def __init__(self, variable: Variable, inner: Any) -> None:
        super().__init__(variable)
        self.inner = inner
        """The object as a key."""

    def __hash__(self) -> int:
        return hash(self.inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReferenceKey) and bool(self.inner == other.inner)


def _reference_key(key: weakref.ref[Any]) -> Any:
    """A weak reference in a dict of the caller's."""
    found = weakref.ref.__call__(key)
    inner = None if found is None else tracked_key(found)
    plain = isinstance(inner, ObjectKey) and not isinstance(found, torch.Tensor)
    return ReferenceKey(Known(key), inner) if plain else key


def tracked_key(key: Any) -> Any:
    """A key of a real dict as tracked dicts hold it."""
    if isinstance(key, weakref.ref):
        return _reference_key(key)
    if is_nan(key):
        raise TraceBreakError("GB0009", "NaN as a key, which is found by its identity")
    cls: Any = type(key)
    if is_constant(key) or cls is tuple:
        return key
    definition = isinstance(key, type | types.FunctionType)  # they are keys as they are
    by_identity = cls.__eq__ is object.__eq__ and not definition
    return ObjectKey(Known(key)) if by_identity or isinstance(key, torch.Tensor) else key


def real_key(key: Any) -> Any:
    """The key of the real dict."""
    if not isinstance(key, ObjectKey):
        return key
    held = key.variable
    return held.value if isinstance(held, Known) else getattr(held, "original", None)


def key_code(key: ObjectKey) -> str | None:
    """Python that reads the key's object in each call; None for an object made in the trace."""
    source = getattr(key.variable, "source", None)
    return None if source is None else source.code


def guard_key(state: TraceState, source: Source, key: ObjectKey, present: bool) -> None:
    """Guard that a dict has, or has not, an object as a key."""
    code = key_code(key)
    if code is None:
        if present:
            raise TraceBreakError("GB0009", f"{source.text} read by a key that is an object")
        return
    text = f"{key.variable.source.text} {'in' if present else 'not in'} {source.text}"  # type: ignore[attr-defined]  # it has one
    state.guard(source, f"{code} {'in' if present else 'not in'} {{}}", text)


def entry_source(source: Source, key: ObjectKey) -> Source:
    """The value under a key that is an object."""
    code = key_code(key)
    if code is None:
        raise TraceBreakError("GB0009", f"{source.text} read by a key that is an object")
    shown: str = key.variable.source.text  # type: ignore[attr-defined]  # it has one
    return Source(f"{source.code}[{code}]", f"{source.text}[{shown}]", source)


def read_keys(state: TraceState, source: Source, keys: Sequence[Any]) -> None:
    """Guard how many keys there are, and let each that is an object be read from its place."""
    if len(keys) > _MAX_KEYS:
        raise TraceBreakError("GB0009", f"{source.text} is a dict with many objects as keys")
    state.require(source, Kind.LENGTH, len(keys), f"len({source.text}) == {len(keys)}")
    reader = state.constants.name(nth_key)
    for place, key in enumerate(keys):
        where = Source(f"{reader}({source.code}, {place})", f"key {place} of {source.text}", source)
        if isinstance(key, ObjectKey):
            if key_code(key) is None:
                key.variable = state.wrap(real_key(key), where)
        else:
            state.wrap(key, where)


def is_identity_key(value: object) -> bool:
    """Whether a key compares by identity: a class or function, or a tuple of these."""
    if type(value) is tuple:
        return all(is_constant(item) or is_identity_key(item) for item in value)
    return isinstance(value, type | types.FunctionType | types.BuiltinFunctionType)


def read_elements(state: TraceState, source: Source, values: Any) -> set[Any]:
    """The elements of a set of the caller's: the same constants, or objects at their places."""
    kind: Any = frozenset if isinstance(values, frozenset) else set
    held = list(kind.__iter__(values))  # past what its class would say
    if any(map(is_nan, held)):
        raise TraceBreakError("GB0009", f"{source.text} holds NaN, which is found by its identity")
    if all(is_constant(value) or is_identity_key(value) for value in held):
        text = f"{source.text} keeps its elements"
        if type(values) is kind:
            state.require(source, Kind.KEYS, tuple(held), text)
        else:
            name = state.constants.name
            order = f"{name(same_order)}({name(kind.__iter__)}({{}}), {name(tuple(held))})"
            state.guard(source, order, text)
        return like(values, held)
    if len(held) > _MAX_KEYS or type(values) is not kind:
        raise TraceBreakError("GB0009", f"{source.text} is a set of objects")
    state.require(source, Kind.LENGTH, len(held), f"len({source.text}) == {len(held)}")
    reader = state.constants.name(nth_key)
    found = []
    for place, value in enumerate(held):
        text = f"element {place} of {source.text}"
        where = Source(f"{reader}({source.code}, {place})", text, source)
        found.append(_element(state, value, where))
    return like(values, found)


def _element(state: TraceState, value: Any, where: Source) -> Any:
    held = state.wrap(value, where)
    if is_constant(value) or is_identity_key(value):
        return value
    if isinstance(value, weakref.ref) and type(value).__call__ is weakref.ref.__call__:
        target = Source(f"{where.code}()", f"{where.text}()", where)
        return ReferenceKey(held, _element(state, value(), target))
    cls: Any = type(value)
    if cls.__eq__ is not object.__eq__ or cls.__hash__ is not object.__hash__:
        raise TraceBreakError("GB0009", f"{where.text}, in a set of objects")
    # What is looked for is not it, in each call.
    state.world.distinct.setdefault(where.code, (where, held))
    return ObjectKey(held)


def nth_key(values: Any, place: int) -> Any:
    """The key at a place in the order of a dict, or the element of a set."""
    return next(itertools.islice(values, place, None))
