"""Python's own iterators over containers, by what they still have to give."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    IteratorVariable,
    Known,
    Remake,
    SequenceVariable,
    SetVariable,
    Variable,
    ViewVariable,
    key_variable,
)

_BY_POSITION = (str, bytes, range, tuple, torch.Size)


def over(items: Sequence[Variable]) -> IteratorVariable:
    """An iterator over given elements."""
    return over_sequence(SequenceVariable(list(items), tuple))


def over_sequence(values: SequenceVariable) -> IteratorVariable:
    """An iterator over a list or tuple, which is read as it changes."""
    position: int | None = 0
    kind = list if issubclass(values.kind, list) else tuple

    def step() -> Variable | None:
        nonlocal position
        if position is not None and position < len(values.items):
            position += 1
            return values.items[position - 1]
        position = None  # exhausted, also if the list grows
        return None

    def again() -> Remake:
        if position is None:
            return Remake(iter, [SequenceVariable([], kind)])
        if position > len(values.items):
            raise TraceBreakError("GB0009", "an iterator that stands behind the end of its list")
        return Remake(iter, [values], state=position)

    def remaining() -> int:
        return 0 if position is None else max(0, len(values.items) - position)

    return IteratorVariable(step, type(iter(kind())), again, remaining)


def over_reversed(values: SequenceVariable) -> IteratorVariable:
    """`reversed` of a list or tuple."""
    position = len(values.items) - 1
    is_list = issubclass(values.kind, list)

    def step() -> Variable | None:
        nonlocal position
        if 0 <= position < len(values.items):
            position -= 1
            return values.items[position + 1]
        position = -1
        return None

    def again() -> Remake:
        if position < 0:
            return Remake(reversed, [SequenceVariable([], list if is_list else tuple)])
        return Remake(reversed, [values], state=position)

    def remaining() -> int:
        return position + 1 if position < len(values.items) else 0

    return IteratorVariable(step, type(reversed([])) if is_list else reversed, again, remaining)


def over_known(frame: Frame, value: Known) -> IteratorVariable:
    """An iterator over a string, range or other constant."""
    real = value.value
    ordered: Any = real if isinstance(real, _BY_POSITION) else tuple(real)
    if isinstance(real, frozenset) and value.source is not None:
        text = f"{value.source.text} is in the same order"
        frame.state.require(value.source, Kind.KEYS, tuple(real), text)
    position = 0
    size = len(ordered) if type(real) is not range else _range_length(real)

    def step() -> Variable | None:
        nonlocal position
        if position >= size:
            return None
        position += 1
        return constant(ordered[position - 1])

    def again() -> Remake:
        if isinstance(real, _BY_POSITION):
            return Remake(iter, [value], state=position)
        return Remake(iter, [value], skipped=position)

    return IteratorVariable(step, type(iter(real)), again, lambda: size - position)


def _range_length(values: range) -> int:
    """`len` of a range, which may be longer than C counts."""
    towards = 1 if values.step > 0 else -1
    return max(0, (values.stop - values.start + values.step - towards) // values.step)


def over_keys(
    frame: Frame, owner: DictVariable | SetVariable, part: str = "keys", *, backwards: bool = False
) -> IteratorVariable:
    """An iterator over a set, or over the keys, values or items of a dict.

    What holds the elements is a dict or set itself: it knows what may change meanwhile.
    """
    held: Any = reversed(list(owner.items)) if backwards else iter(owner.items)
    ordered = issubclass(getattr(owner, "kind", dict), collections.OrderedDict)
    before, count, ended = list(owner.items), 0, False

    def step() -> Variable | None:
        nonlocal count, ended
        if ended:
            return None
        if ordered and list(owner.items) != before:
            fails(RuntimeError, "OrderedDict mutated during iteration")
        if backwards and len(owner.items) != len(before):
            fails(RuntimeError, "dictionary changed size during iteration")
        try:
            key = next(held)
        except StopIteration:
            ended = True
            return None
        except RuntimeError as error:
            raise python_error(error) from error
        count += 1
        return _part(owner, key, part)

    def again() -> Remake:
        if ended:
            empty = DictVariable({}) if isinstance(owner, DictVariable) else SetVariable(set())
            return Remake(iter, [empty])
        own_order = isinstance(owner, SetVariable) and owner.source is None and count > 0
        changed = id(owner) in frame.state.world.changed or list(owner.items) != before
        if backwards or own_order or changed:
            raise TraceBreakError("GB0009", "an iterator over a dict or set that changed")
        if part == "keys":
            return Remake(iter, [owner], skipped=count)
        assert isinstance(owner, DictVariable)
        return Remake(iter, [ViewVariable(owner, part)], skipped=count)

    def remaining() -> int:
        return 0 if ended or len(owner.items) != len(before) else len(before) - count

    kind = type(_sample(owner, part, backwards))
    return IteratorVariable(step, kind, again, remaining)


def _part(owner: DictVariable | SetVariable, key: Any, part: str) -> Variable:
    if part == "keys" or isinstance(owner, SetVariable):
        return key_variable(key)
    value = owner.items[key]
    return value if part == "values" else SequenceVariable([key_variable(key), value], tuple)


def _sample(owner: DictVariable | SetVariable, part: str, backwards: bool) -> Any:
    """An iterator of the class that Python's has here."""
    if isinstance(owner, SetVariable):
        return iter(set())
    ordered = issubclass(owner.kind, collections.OrderedDict)
    empty: Any = collections.OrderedDict() if ordered else {}
    view = getattr(empty, part)()
    return reversed(view) if backwards else iter(view)
