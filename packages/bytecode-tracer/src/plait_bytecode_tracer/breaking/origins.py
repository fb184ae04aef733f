"""Of what code and lines functions are made that go on in others."""

from __future__ import annotations

import types
import weakref

from plait_bytecode_tracer.breaking.places import CELL_PREFIX, STACK_PREFIX
from plait_bytecode_tracer.frames.frame import instructions_of, line_text
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """The code that a made function's code was made of."""

    code: types.CodeType
    offsets: dict[int, int]
    """For each instruction the one that it was; -1 where it is a part of one."""
    calls: frozenset[int]
    """The calls that `resume_call` has put beside those that they stand for."""


_ORIGINS: dict[int, tuple[weakref.ref[types.CodeType], Origin]] = {}


def origin_of(code: types.CodeType) -> Origin | None:
    """Of what code a function's code was made, if it was."""
    found = _ORIGINS.get(id(code))
    return found[1] if found is not None and found[0]() is code else None


def remember(code: types.CodeType, origin: Origin) -> None:
    """Keep of what code a function's code was made, as long as that is alive."""
    key = id(code)
    _ORIGINS[key] = (weakref.ref(code, lambda _: _ORIGINS.pop(key, None)), origin)


def shown_parameter(name: str) -> str:
    """A parameter of a continuation for people."""
    kind, _, rest = name.partition("_of_")
    place = kind.removeprefix(STACK_PREFIX)
    if place != kind and place.strip("_").isdigit():
        return f"value {place.strip('_')} on the stack" + (f" of {rest}" if rest else "")
    if name.startswith(CELL_PREFIX):
        return name.removeprefix(CELL_PREFIX).lstrip("0123456789").removeprefix("_") or name
    return name


def is_chain(code: types.CodeType) -> bool:
    """Whether a code object is that of a function that `chain` made."""
    return code.co_filename == "<plait continuation>"


def lines_at(function: types.FunctionType) -> tuple[str, ...]:
    """Where a call begins, innermost line first: that of a continuation in the midst of them."""
    code = function.__code__
    if is_chain(code):
        parts = [each for each in code.co_consts if isinstance(each, types.FunctionType)]
        return tuple(line for part in reversed(parts) for line in lines_at(part))
    if origin_of(code) is None:
        return (f"{code.co_filename}:{code.co_firstlineno}",)
    instructions, by_offset = instructions_of(code)
    entered = next(i for i in instructions if i.opname == "JUMP_FORWARD")
    positions = instructions[by_offset[entered.argval]].positions
    number = (positions and positions.lineno) or code.co_firstlineno
    return (line_text(code.co_filename, number, code.co_name),)
