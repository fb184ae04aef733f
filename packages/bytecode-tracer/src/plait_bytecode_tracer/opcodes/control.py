"""Jumps, loops and `with` blocks."""

from __future__ import annotations

from dis import Instruction

from plait_bytecode_tracer.builtin_calls import truth
from plait_bytecode_tracer.calls import call
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.iteration import iterate
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.variables import GradModeVariable, IteratorVariable, Known


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
    iterator = frame.stack[-1]
    if not isinstance(iterator, IteratorVariable):
        raise TraceBreakError("GB0009", "a loop over an object that cannot be traced")
    value = iterator.next_()
    if value is not None:
        frame.push(value)
        return None
    frame.pop()
    target = frame.index_of(instruction.argval)
    from plait_bytecode_tracer.frame import instructions_of

    # From 3.12 the jump lands on END_FOR, which takes the iterator and its last value.
    return target + 1 if instructions_of(frame.code)[0][target].opname == "END_FOR" else target


@opcode("BEFORE_WITH")
def before_with(frame: Frame, instruction: Instruction) -> None:
    manager = frame.pop()
    if not isinstance(manager, GradModeVariable):
        raise TraceBreakError("GB0002", "a context manager that cannot be traced")
    enter_grad_mode(frame, manager)
    frame.blocks += 1
    frame.push(manager)
    frame.push(constant(None))


def enter_grad_mode(frame: Frame, manager: GradModeVariable) -> None:
    """Switch gradients in the trace and in the graph."""
    manager.previous = frame.state.grad_enabled
    set_grad_enabled(frame, manager.enabled)


def set_grad_enabled(frame: Frame, enabled: bool) -> None:
    import torch

    frame.state.grad_enabled = enabled
    node = frame.state.graph.call_function(torch._C._set_grad_enabled, (enabled,))
    node.meta["source_line"] = frame.line()


def leave_block(frame: Frame, manager: GradModeVariable) -> None:
    """The normal end of a `with` block."""
    frame.blocks -= 1
    set_grad_enabled(frame, bool(manager.previous))


@opcode("RETURN_GENERATOR")
def return_generator(frame: Frame, instruction: Instruction) -> None:
    frame.push(constant(None))


@opcode("YIELD_VALUE")
def yield_value(frame: Frame, instruction: Instruction) -> None:
    frame.yielded = frame.pop()
    frame.push(constant(None))  # what is sent into the generator


@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, instruction: Instruction) -> None:
    raise TraceBreakError("GB0006", "the code raises an exception here")


__all__ = ["call"]
