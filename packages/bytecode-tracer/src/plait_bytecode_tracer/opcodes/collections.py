"""Building and unpacking containers."""

from __future__ import annotations

from collections.abc import Iterator
from dis import Instruction
from typing import TypeVar

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import changed, dict_set, extend, hold
from plait_bytecode_tracer.objects.iteration import elements, iterate, require_iterable
from plait_bytecode_tracer.objects.statics import MISSING, static_attribute
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.hints import sized_elements
from plait_bytecode_tracer.values.keys import constant_key, set_operand
from plait_bytecode_tracer.values.open_lists import OpenList, open_copy, open_of
from plait_bytecode_tracer.values.set_order import Taken, new_set, note_change
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    IteratorVariable,
    Known,
    SequenceVariable,
    SetVariable,
    Variable,
)


@opcode("BUILD_TUPLE")
def build_tuple(frame: Frame, instruction: Instruction) -> None:
    frame.push(SequenceVariable(frame.pop_many(instruction.arg or 0), tuple))


@opcode("BUILD_LIST")
def build_list(frame: Frame, instruction: Instruction) -> None:
    frame.push(SequenceVariable(frame.pop_many(instruction.arg or 0), list))


@opcode("BUILD_SET")
def build_set(frame: Frame, instruction: Instruction) -> None:
    items = frame.pop_many(instruction.arg or 0)
    # Each is compared with those before it as it comes.
    frame.push(new_set(constant_key(frame, item) for item in items))


@opcode("BUILD_MAP")
def build_map(frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(2 * (instruction.arg or 0))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    frame.push(DictVariable({constant_key(frame, key): value for key, value in pairs}))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: Frame, instruction: Instruction) -> None:
    keys = frame.pop()
    values = frame.pop_many(instruction.arg or 0)
    if not isinstance(keys, Known):
        raise TraceBreakError("GB0009", "a dict with keys that are not constants")
    frame.push(DictVariable(dict(zip(keys.value, values, strict=True))))


@opcode("LIST_TO_TUPLE", until=(3, 12))
def list_to_tuple(frame: Frame, instruction: Instruction) -> None:
    values = frame.pop()
    items = open_copy(values)
    frame.push(SequenceVariable([*elements(frame, values)] if items is None else items, tuple))


Filled = TypeVar("Filled", bound=Variable)


def _filled(frame: Frame, instruction: Instruction, kind: type[Filled]) -> Filled:
    """The container that a display or comprehension fills: the caller's after a graph break."""
    target = hold(frame.stack[-(instruction.arg or 1)], kind)
    changed(frame, target)
    return target


@opcode("LIST_EXTEND")
def list_extend(frame: Frame, instruction: Instruction) -> None:
    added = frame.pop()
    target = _filled(frame, instruction, SequenceVariable)
    opened = None if target.source is not None else open_copy(added)
    if isinstance(opened, OpenList) and open_of(target.items) is None:
        target.items = opened.beside(target.items, ())
        return
    target.items.extend(sized_elements(frame, require_iterable(added)))


@opcode("LIST_APPEND")
def list_append(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    _filled(frame, instruction, SequenceVariable).items.append(value)


@opcode("SET_ADD")
def set_add(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    target = _filled(frame, instruction, SetVariable)
    key = constant_key(frame, value)
    target.items.add(key)
    note_change(target, "add", [key])


@opcode("SET_UPDATE")
def set_update(frame: Frame, instruction: Instruction) -> None:
    values = set_operand(frame, frame.pop())
    values = Taken(values) if isinstance(values, Iterator) else values
    target = _filled(frame, instruction, SetVariable)
    target.items.update(values)
    note_change(target, "update", [values])


@opcode("MAP_ADD")
def map_add(frame: Frame, instruction: Instruction) -> None:
    value, key = frame.pop(), frame.pop()
    target = hold(frame.stack[-(instruction.arg or 1)], DictVariable)
    dict_set(frame, target, constant_key(frame, key), value)


@opcode("DICT_MERGE")
def dict_merge(frame: Frame, instruction: Instruction) -> None:
    other = _require_mapping(frame.pop())
    target = hold(frame.stack[-(instruction.arg or 1)], DictVariable)
    given = DictVariable({})
    extend(frame, given, other)
    if any(key in target.items or not isinstance(key, str) for key in given.items):
        raise TraceBreakError("GB0006", "keyword arguments that are given twice, or no strings")
    extend(frame, target, given)


@opcode("DICT_UPDATE")
def dict_update(frame: Frame, instruction: Instruction) -> None:
    other = _require_mapping(frame.pop())
    extend(frame, hold(frame.stack[-(instruction.arg or 1)], DictVariable), other)


def _require_mapping(value: Variable) -> Variable:
    """What stands after `**`; breaks where Python says so that it cannot stand there."""
    cls = type_of(value)
    if static_attribute(cls, "keys") is MISSING and static_attribute(cls, "__getattr__") is MISSING:
        raise TraceBreakError("GB0006", f"a {cls.__name__} after **")
    return value


def _unpacked(frame: Frame, value: Variable) -> IteratorVariable:
    """What is unpacked; Python words it so where that cannot be."""
    try:
        return iterate(frame, value)
    except PythonError as error:
        methods = [static_attribute(type_of(value), name) for name in ("__iter__", "__getitem__")]
        if not issubclass(exception_class(error.value), TypeError) or methods != [MISSING] * 2:
            raise
    return fails(TypeError, f"cannot unpack non-iterable {type_of(value).__name__} object")


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(frame: Frame, instruction: Instruction) -> None:
    iterator = _unpacked(frame, frame.pop())
    values: list[Variable] = []
    while len(values) <= (instruction.arg or 0) and (item := iterator.next_()) is not None:
        values.append(item)
    if len(values) != instruction.arg:
        if len(values) > (instruction.arg or 0):
            fails(ValueError, f"too many values to unpack (expected {instruction.arg})")
        text = f"not enough values to unpack (expected {instruction.arg}, got {len(values)})"
        fails(ValueError, text)
    frame.stack.extend(reversed(values))


@opcode("UNPACK_EX")
def unpack_ex(frame: Frame, instruction: Instruction) -> None:
    before, after = (instruction.arg or 0) & 0xFF, (instruction.arg or 0) >> 8
    values = list(elements(frame, _unpacked(frame, frame.pop())))
    if len(values) < before + after:
        expected = f"expected at least {before + after}, got {len(values)}"
        fails(ValueError, f"not enough values to unpack ({expected})")
    middle = values[before : len(values) - after]
    tail = values[len(values) - after :]
    parts = [*values[:before], SequenceVariable(middle, list), *tail]
    frame.stack.extend(reversed(parts))
