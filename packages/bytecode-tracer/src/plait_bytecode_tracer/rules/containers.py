"""Builtin containers, made of iterables."""

from __future__ import annotations

import collections
import operator
from typing import Any

from plait_bytecode_tracer.frames.arity import refuse_by_count
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import contains, extend, get_item
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.twins import small
from plait_bytecode_tracer.values.hints import sized_elements
from plait_bytecode_tracer.values.keys import keys_of, set_operand
from plait_bytecode_tracer.values.open_lists import open_copy
from plait_bytecode_tracer.values.set_order import new_set
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    Variable,
)


@builtin(list)
def list_(frame: Frame, values: Variable | None = None) -> Variable:
    made = open_copy(values)
    if made is None:
        made = [] if values is None else list(sized_elements(frame, values))
    return SequenceVariable(made, list)


@builtin(tuple)
def tuple_(frame: Frame, values: Variable | None = None) -> Variable:
    if isinstance(values, SequenceVariable) and values.kind is tuple:
        return values
    if isinstance(values, Known) and type(values.value) is tuple:
        return values
    made = open_copy(values)
    if made is None:
        made = [] if values is None else list(sized_elements(frame, values))
    return SequenceVariable(made, tuple)


@builtin(set)
def set_(frame: Frame, values: Variable | None = None) -> Variable:
    return new_set([] if values is None else set_operand(frame, values))


@builtin(frozenset)
def frozenset_(frame: Frame, values: Variable | None = None) -> Variable:
    if isinstance(values, SetVariable) and values.kind is frozenset:
        return values
    if isinstance(values, Known) and type(values.value) is frozenset:
        return values
    return new_set([] if values is None else set_operand(frame, values), frozenset)


@builtin(dict)
def dict_(frame: Frame, /, *values: Variable, **items: Variable) -> Variable:
    if len(values) > 1:
        refuse_by_count(dict, len(values))
    made = DictVariable({})
    for given in values:
        extend(frame, made, given)
    made.items.update(items)
    return made


@builtin(slice)
def slice_(frame: Frame, /, *bounds: Variable) -> Variable:
    if not 1 <= len(bounds) <= 3:
        refuse_by_count(slice, len(bounds))
    parts = list(bounds) if len(bounds) > 1 else [constant(None), *bounds]
    return SliceVariable([*parts, *[constant(None)] * (3 - len(parts))])


@builtin(operator.getitem)
def operator_getitem(frame: Frame, container: Variable, key: Variable) -> Variable:
    return get_item(frame, container, key)


@builtin(operator.contains)
def operator_contains(frame: Frame, container: Variable, item: Variable) -> Variable:
    return constant(contains(frame, container, item))


@builtin(dict.fromkeys)
def fromkeys(frame: Frame, keys: Variable, value: Variable | None = None) -> Variable:
    given = constant(None) if value is None else value
    return DictVariable(dict.fromkeys(keys_of(frame, keys), given))


_count_elements: Any = vars(collections)["_count_elements"]


@builtin(_count_elements)
def count_elements(frame: Frame, mapping: Variable, iterable: Variable) -> Variable:
    return frame.call(constant(small.count_elements), [mapping, iterable], {})
