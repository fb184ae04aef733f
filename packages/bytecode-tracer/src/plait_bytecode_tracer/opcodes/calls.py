"""Calls and function definitions."""

from __future__ import annotations

from dis import Instruction

from plait_bytecode_tracer.calls import call
from plait_bytecode_tracer.containers import hold, plain_value
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import NULL, Frame
from plait_bytecode_tracer.iteration import elements
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.variables import (
    CellVariable,
    DictVariable,
    FunctionVariable,
    Known,
    Variable,
)


@opcode("KW_NAMES")
def kw_names(frame: Frame, instruction: Instruction) -> None:
    frame.keyword_names = frame.code.co_consts[instruction.arg or 0]


@opcode("CALL")
def call_(frame: Frame, instruction: Instruction) -> None:
    values = frame.pop_many(instruction.arg or 0)
    names, frame.keyword_names = frame.keyword_names, ()
    count = len(values) - len(names)
    args, kwargs = values[:count], dict(zip(names, values[count:], strict=True))
    upper, lower = frame.pop(), frame.pop()
    function = upper
    if lower is not NULL:
        function, args = lower, [upper, *args]
    frame.push(_call_directly(frame, function, args, kwargs))


def _call_directly(
    frame: Frame, function: Variable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    frame.state.is_direct = True
    try:
        return call(frame, function, args, kwargs)
    finally:
        frame.state.is_direct = False


@opcode("CALL_FUNCTION_EX")
def call_function_ex(frame: Frame, instruction: Instruction) -> None:
    kwargs = hold(frame.pop(), DictVariable).items if (instruction.arg or 0) & 1 else {}
    args = list(elements(frame, frame.pop()))
    function = frame.pop()
    if frame.stack and frame.stack[-1] is NULL:
        frame.pop()
    frame.push(_call_directly(frame, function, args, dict(kwargs)))


@opcode("MAKE_FUNCTION")
def make_function(frame: Frame, instruction: Instruction) -> None:
    flags = instruction.arg or 0
    code = frame.pop()
    if not isinstance(code, Known):
        raise TraceBreakError("GB0001", "a function made of code that is not a constant")
    made = FunctionVariable(code.value, frame.function.globals, code.value.co_name)
    if flags & 8:
        cells = elements(frame, frame.pop())
        made.closure = [hold(cell, CellVariable) for cell in cells]
    if flags & 4:
        parts = list(elements(frame, frame.pop()))
        made.annotations = dict(zip(map(plain_value, parts[::2]), parts[1::2], strict=True))
    if flags & 2:
        made.keyword_defaults = dict(hold(frame.pop(), DictVariable).items)
    if flags & 1:
        made.defaults = list(elements(frame, frame.pop()))
    frame.push(made)
