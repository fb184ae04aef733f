"""Calls and function definitions."""

from __future__ import annotations

from dis import Instruction

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import NULL, Frame
from plait_bytecode_tracer.objects.compared_reads import read_to_compare
from plait_bytecode_tracer.objects.containers import hold, plain_value
from plait_bytecode_tracer.objects.iteration import elements, require_iterable
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
    FunctionVariable,
    Known,
    ObjectKey,
    Variable,
)


@opcode("KW_NAMES", until=(3, 13))
def kw_names(frame: Frame, instruction: Instruction) -> None:
    frame.keyword_names = frame.code.co_consts[instruction.arg or 0]


@opcode("CALL")
def call_(frame: Frame, instruction: Instruction) -> None:
    values = frame.pop_many(instruction.arg or 0)
    names, frame.keyword_names = frame.keyword_names, ()
    _call(frame, values, names)


@opcode("CALL_KW", since=(3, 13))
def call_kw(frame: Frame, instruction: Instruction) -> None:
    names = plain_value(frame.pop())
    _call(frame, frame.pop_many(instruction.arg or 0), names)


def _call(frame: Frame, values: list[Variable], names: tuple[str, ...]) -> None:
    """Call what is below the arguments, of which the last ones have names.

    It is a callable and NULL, or a function and what it is bound to: to 3.12 NULL is the
    lower of the two, from 3.13 the upper.
    """
    count = len(values) - len(names)
    args, kwargs = values[:count], dict(zip(names, values[count:], strict=True))
    upper, function = frame.pop(), frame.pop()
    if function is NULL:
        function = upper
    elif upper is not NULL:
        args = [upper, *args]
    found = None if kwargs else read_to_compare(frame, function, args)
    frame.push(_call_directly(frame, function, args, kwargs) if found is None else found)


def _call_directly(
    frame: Frame, function: Variable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    frame.state.is_direct = True
    try:
        return frame.call(function, args, kwargs)
    finally:
        frame.state.is_direct = False


@opcode("CALL_FUNCTION_EX")
def call_function_ex(frame: Frame, instruction: Instruction) -> None:
    kwargs = hold(frame.pop(), DictVariable).items if (instruction.arg or 0) & 1 else {}
    if any(
        isinstance(name, ObjectKey) and issubclass(type_of(name.variable), str) for name in kwargs
    ):
        raise TraceBreakError("GB0002", "a call with keywords of a class of their own")
    if not all(isinstance(name, str) for name in kwargs):
        fails(TypeError, "keywords must be strings")
    args = list(elements(frame, require_iterable(frame.pop())))
    function = frame.pop()
    if function is NULL:  # from 3.13
        function = frame.pop()
    elif frame.stack and frame.stack[-1] is NULL:
        frame.pop()
    frame.push(_call_directly(frame, function, args, dict(kwargs)))


@opcode("MAKE_FUNCTION")
def make_function(frame: Frame, instruction: Instruction) -> None:
    flags = instruction.arg or 0  # none from 3.13
    code = frame.pop()
    if not isinstance(code, Known):
        raise TraceBreakError("GB0001", "a function made of code that is not a constant")
    made = FunctionVariable(code.value, frame.function.globals, code.value.co_name)
    for flag in (8, 4, 2, 1):
        if flags & flag:
            _set_part(frame, made, flag, frame.pop())
    frame.push(made)


@opcode("SET_FUNCTION_ATTRIBUTE", since=(3, 13))
def set_function_attribute(frame: Frame, instruction: Instruction) -> None:
    made = hold(frame.pop(), FunctionVariable)
    _set_part(frame, made, instruction.arg or 0, frame.pop())
    frame.push(made)


def _set_part(frame: Frame, made: FunctionVariable, flag: int, value: Variable) -> None:
    if flag == 8:
        made.closure = [hold(cell, CellVariable) for cell in elements(frame, value)]
    elif flag == 4:
        parts = list(elements(frame, value))
        made.annotations = dict(zip(map(plain_value, parts[::2]), parts[1::2], strict=True))
    elif flag == 2:
        made.keyword_defaults = dict(hold(value, DictVariable).items)
    else:
        made.defaults = list(elements(frame, value))
