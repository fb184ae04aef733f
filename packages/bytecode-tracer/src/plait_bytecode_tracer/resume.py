"""Functions that go on in the middle of another: its locals and stack as arguments."""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence

from bytecode import Bytecode, Instr, Label

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import instructions_of

STACK_PREFIX = "__stack"
"""Parameters of continuations that carry the stack; they are dead once it is rebuilt."""
_SKIPPED = ("CACHE", "EXTENDED_ARG")


def resume_function(
    function: types.FunctionType,
    offset: int,
    stack_nulls: Sequence[bool],
    local_names: Sequence[str],
) -> types.FunctionType:
    """A function that continues `function` at bytecode `offset`.

    It takes the stack from the bottom (entries that are NULL are not passed), then the
    named locals.
    """
    code = function.__code__
    stack_names = [f"{STACK_PREFIX}{n}" for n in range(len(stack_nulls))]
    body = Bytecode.from_code(code)
    position = _position(body, _ordinal(code, offset))
    target = Label()
    body.insert(position, target)
    start = _after_resume(body)
    prologue: list[Instr] = []
    for name, is_null in zip(stack_names, stack_nulls, strict=True):
        prologue.append(Instr("PUSH_NULL") if is_null else Instr("LOAD_FAST", name))
    prologue.append(Instr("JUMP_FORWARD", target))
    body[start:start] = prologue
    passed = [n for n, is_null in zip(stack_names, stack_nulls, strict=True) if not is_null]
    body.argnames = [*passed, *local_names]
    body.argcount = len(body.argnames)
    body.posonlyargcount = 0
    body.kwonlyargcount = 0
    body.flags &= ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    body.name = f"{code.co_name}_resumed"
    made = types.FunctionType(
        body.to_code(), function.__globals__, body.name, None, function.__closure__
    )
    made.__module__ = function.__module__
    made.__qualname__ = f"{function.__qualname__} (resumed)"
    return made


def _ordinal(code: types.CodeType, offset: int) -> int:
    """Which instruction stands at `offset`, prefixes and caches not counted."""
    instructions, by_offset = instructions_of(code)
    before = instructions[: by_offset[offset]]
    return sum(instruction.opname not in _SKIPPED for instruction in before)


def _position(body: Bytecode, ordinal: int) -> int:
    count = 0
    for position, item in enumerate(body):
        if isinstance(item, Instr):
            if count == ordinal:
                return position
            count += 1
    raise TraceBreakError("GB0001", "the place to resume at was not found")


def _after_resume(body: Bytecode) -> int:
    for position, item in enumerate(body):
        if isinstance(item, Instr) and item.name == "RESUME":
            return position + 1
    raise TraceBreakError("GB0001", "a function without a start")
