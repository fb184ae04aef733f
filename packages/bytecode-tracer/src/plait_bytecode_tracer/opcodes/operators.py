"""Arithmetic, comparison, subscripts and formatting."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dis import Instruction
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.compared_reads import ReadVariable, compare_reads
from plait_bytecode_tracer.objects.containers import (
    contains,
    delete_item,
    get_item,
    plain_value,
    set_item,
)
from plait_bytecode_tracer.objects.operations import apply, identical, truth
from plait_bytecode_tracer.opcodes.control import as_bool
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.values.texts import CONVERSIONS, joined, tensor_text
from plait_bytecode_tracer.values.variables import (
    Known,
    SliceVariable,
    SymbolVariable,
    TensorVariable,
    TextVariable,
    Variable,
)

_BINARY: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


@opcode("BINARY_OP")
def binary_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(apply(frame, _BINARY[instruction.argrepr], [left, right]))


@opcode("COMPARE_OP")
def compare_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    if isinstance(left, ReadVariable) or isinstance(right, ReadVariable):
        frame.push(compare_reads(frame, _COMPARE[instruction.argval], left, right))
        return
    result = apply(frame, _COMPARE[instruction.argval], [left, right])
    if sys.version_info >= (3, 13) and (instruction.arg or 0) & 16:
        result = as_bool(frame, result, after=True)
    frame.push(result)


@opcode("IS_OP")
def is_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(constant(identical(frame, left, right) is not bool(instruction.arg)))


@opcode("CONTAINS_OP")
def contains_op(frame: Frame, instruction: Instruction) -> None:
    container, item = frame.pop(), frame.pop()
    found = contains(frame, container, item)
    frame.push(constant(found is not bool(instruction.arg)))


@opcode("UNARY_NEGATIVE")
def unary_negative(frame: Frame, instruction: Instruction) -> None:
    frame.push(apply(frame, operator.neg, [frame.pop()]))


@opcode("UNARY_INVERT")
def unary_invert(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    if sys.version_info >= (3, 12) and isinstance(value, Known) and type(value.value) is bool:
        raise TraceBreakError("GB0006", "the inversion of a bool, which warns each time")
    frame.push(apply(frame, operator.invert, [value]))


@opcode("UNARY_POSITIVE", until=(3, 12))
def unary_positive(frame: Frame, instruction: Instruction) -> None:
    frame.push(apply(frame, operator.pos, [frame.pop()]))


@opcode("UNARY_NOT")
def unary_not(frame: Frame, instruction: Instruction) -> None:
    frame.push(constant(not truth(frame, frame.pop())))


@opcode("BINARY_SUBSCR")
def binary_subscr(frame: Frame, instruction: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    frame.push(get_item(frame, container, key))


@opcode("BINARY_SLICE", since=(3, 12))
def binary_slice(frame: Frame, instruction: Instruction) -> None:
    stop, start, container = frame.pop(), frame.pop(), frame.pop()
    frame.push(get_item(frame, container, SliceVariable([start, stop, constant(None)])))


@opcode("STORE_SLICE", since=(3, 12))
def store_slice(frame: Frame, instruction: Instruction) -> None:
    stop, start, container, value = frame.pop(), frame.pop(), frame.pop(), frame.pop()
    set_item(frame, container, SliceVariable([start, stop, constant(None)]), value)


@opcode("STORE_SUBSCR")
def store_subscr(frame: Frame, instruction: Instruction) -> None:
    key, container, value = frame.pop(), frame.pop(), frame.pop()
    set_item(frame, container, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(frame: Frame, instruction: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    delete_item(frame, container, key)


@opcode("BUILD_SLICE")
def build_slice(frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(instruction.arg or 0)
    while len(parts) < 3:
        parts.append(constant(None))
    frame.push(SliceVariable(parts))


@opcode("FORMAT_VALUE", until=(3, 13))
def format_value(frame: Frame, instruction: Instruction) -> None:
    flags = instruction.arg or 0
    spec = frame.pop() if flags & 4 else constant("")
    value = frame.pop()
    if flags & 3:
        value = _convert(frame, value, flags & 3)
    frame.push(_format(frame, value, spec))


@opcode("CONVERT_VALUE", since=(3, 13))
def convert_value(frame: Frame, instruction: Instruction) -> None:
    frame.push(_convert(frame, frame.pop(), instruction.arg or 0))


@opcode("FORMAT_SIMPLE", since=(3, 13))
def format_simple(frame: Frame, instruction: Instruction) -> None:
    frame.push(_format(frame, frame.pop(), constant("")))


@opcode("FORMAT_WITH_SPEC", since=(3, 13))
def format_with_spec(frame: Frame, instruction: Instruction) -> None:
    spec, value = frame.pop(), frame.pop()
    frame.push(_format(frame, value, spec))


def _convert(frame: Frame, value: Variable, kind: int) -> Variable:
    if isinstance(value, TensorVariable):
        refuse_modes(frame.state, "the text of a tensor")
        return tensor_text(value, kind, "")
    return frame.call(constant(CONVERSIONS[kind]), [value], {})


def _format(frame: Frame, value: Variable, spec: Variable) -> Variable:
    if isinstance(value, TensorVariable):
        refuse_modes(frame.state, "the text of a tensor")
        return tensor_text(value, 0, plain_value(spec))
    if isinstance(value, TextVariable) and plain_value(spec) == "":
        return value
    return frame.call(constant(format), [value, spec], {})


@opcode("BUILD_STRING")
def build_string(frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(instruction.arg or 0)
    if any(isinstance(part, TextVariable) for part in parts):
        frame.push(joined(parts))
        return
    if any(isinstance(part, SymbolVariable) for part in parts):
        text: Variable = constant("")
        for part in parts:
            text = apply(frame, operator.add, [text, part])
        frame.push(text)
        return
    frame.push(constant("".join(part.value for part in parts if isinstance(part, Known))))
