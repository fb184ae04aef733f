"""Jumps, loops and generators."""

from __future__ import annotations

import inspect
from dis import Instruction

from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.closing import acts_when_closed, is_of_another_kind
from plait_bytecode_tracer.frames.effects import LOOP_END
from plait_bytecode_tracer.frames.frame import Frame, constant, instructions_of
from plait_bytecode_tracer.frames.generators import send_to
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.iteration import iterate, iterator_of, next_item
from plait_bytecode_tracer.objects.operations import truth
from plait_bytecode_tracer.opcodes.load_store import read_global
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.values.variables import (
    CoroutineVariable,
    GeneratorVariable,
    IteratorVariable,
    Known,
    Variable,
)


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(frame: Frame, instruction: Instruction) -> int:
    return frame.index_of(instruction.argval)


@opcode(
    "POP_JUMP_FORWARD_IF_TRUE",
    "POP_JUMP_BACKWARD_IF_TRUE",
    "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_FALSE",
    until=(3, 12),
)
def pop_jump_311(frame: Frame, instruction: Instruction) -> int | None:
    return pop_jump(frame, instruction)


@opcode("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", since=(3, 12))
def pop_jump(frame: Frame, instruction: Instruction) -> int | None:
    wanted = instruction.opname.endswith("TRUE")
    if truth(frame, frame.pop()) is wanted:
        return frame.index_of(instruction.argval)
    return None


@opcode(
    "POP_JUMP_FORWARD_IF_NONE",
    "POP_JUMP_BACKWARD_IF_NONE",
    "POP_JUMP_FORWARD_IF_NOT_NONE",
    "POP_JUMP_BACKWARD_IF_NOT_NONE",
    until=(3, 12),
)
def pop_jump_none_311(frame: Frame, instruction: Instruction) -> int | None:
    return pop_jump_none(frame, instruction)


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", since=(3, 12))
def pop_jump_none(frame: Frame, instruction: Instruction) -> int | None:
    value = frame.pop()
    is_none = isinstance(value, Known) and value.value is None
    if is_none is not instruction.opname.endswith("NOT_NONE"):
        return frame.index_of(instruction.argval)
    return None


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", until=(3, 12))
def jump_or_pop(frame: Frame, instruction: Instruction) -> int | None:
    wanted = instruction.opname == "JUMP_IF_TRUE_OR_POP"
    if truth(frame, frame.stack[-1]) is wanted:
        return frame.index_of(instruction.argval)
    frame.pop()
    return None


@opcode("GET_ITER")
def get_iter(frame: Frame, instruction: Instruction) -> None:
    frame.push(iterate(frame, frame.pop()))


@opcode("FOR_ITER")
def for_iter(frame: Frame, instruction: Instruction) -> int | None:
    value = next_item(frame, frame.stack[-1])
    if value is not None:
        frame.push(value)
        return None
    frame.pop()
    return frame.index_of(instruction.argval) + LOOP_END


@opcode("END_FOR", since=(3, 12))
def end_for(frame: Frame, instruction: Instruction) -> None:
    """Only where a generator's frame returns into a loop, which is not how they are traced."""
    frame.pop_many(2 if LOOP_END == 1 else 1)


@opcode("TO_BOOL", since=(3, 13))
def to_bool(frame: Frame, instruction: Instruction) -> None:
    frame.push(as_bool(frame, frame.pop()))


def as_bool(frame: Frame, value: Variable, *, after: bool = False) -> Variable:
    """`bool(value)`, which the running instruction tests, or with `after` gives."""
    return constant(truth(frame, value, after=after))


@opcode("RETURN_GENERATOR")
def return_generator(frame: Frame, instruction: Instruction) -> None:
    frame.push(constant(None))


@opcode("YIELD_VALUE")
def yield_value(frame: Frame, instruction: Instruction) -> None:
    frame.yielded = frame.pop()
    if _acts_when_closed(frame) or _waits_for_an_object(frame):
        frame.state.frames.waiting[id(frame)] = frame
    frame.push(WAITING)


def _acts_when_closed(frame: Frame) -> bool:
    def is_missed_by(name: str) -> bool:
        found = read_global(frame, name)
        return isinstance(found, Known) and is_of_another_kind(found.value)

    return acts_when_closed(frame.code, frame.instruction.offset, is_missed_by)


def _waits_for_an_object(frame: Frame) -> bool:
    """Whether it delegates to an object of some class, whose `close` is called with its own."""
    instructions, _ = instructions_of(frame.code)
    following = instructions[frame.index + 1]
    if following.opname != "RESUME" or (following.arg or 0) & 3 < 2:
        return False
    return not isinstance(frame.stack[-1], IteratorVariable | GeneratorVariable | CoroutineVariable)


@opcode("RESUME")
def resume(frame: Frame, instruction: Instruction) -> None:
    if frame.stack and frame.stack[-1] is WAITING:
        frame.pop()
        sent, frame.sent = frame.sent, None
        frame.push(sent if sent is not None else constant(None))


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    if isinstance(value, GeneratorVariable):
        frame.push(value)
    elif isinstance(value, CoroutineVariable):
        if not frame.code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
            text = "cannot 'yield from' a coroutine object in a non-coroutine generator"
            fails(TypeError, text)
        frame.push(value)
    else:
        frame.push(iterator_of(frame, value))


@opcode("SEND")
def send(frame: Frame, instruction: Instruction) -> int | None:
    value = frame.pop()
    found, result = send_to(frame, frame.stack[-1], value)
    if found is not None:
        frame.push(found)
        return None
    if frame.is_312:
        frame.push(result)
    else:
        frame.stack[-1] = result
    return frame.index_of(instruction.argval)


@opcode("CLEANUP_THROW", since=(3, 12))
def cleanup_throw(frame: Frame, instruction: Instruction) -> None:
    """What was thrown into `yield from` left it: as a StopIteration, with its result."""
    raised = frame.pop()
    if not issubclass(exception_class(raised), StopIteration):
        raise PythonError(raised, is_new=False)
    frame.pop_many(2)
    frame.push(constant(None))
    frame.push(load_attribute(frame, raised, "value"))


@opcode("END_SEND", since=(3, 12))
def end_send(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    frame.stack[-1] = value


class _Waiting(Variable):
    """Where a suspended generator takes what is sent."""

    __slots__ = ()


WAITING = _Waiting()
