"""Functions that go on in the middle of another: its locals and stack as arguments.

At a graph break two functions are made of the code of the one that broke. The first runs
the breaking instruction where it stands, so that its line, its exception handlers and its
globals are the user's, and stops; the second, which is compiled, takes what it gives and
goes on after the instruction. If the instruction raises into a handler of the function, the
first one goes on there as plain Python.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Sequence
from typing import Any

from bytecode import Bytecode, Instr, Label
from bytecode.instr import CellVar, FreeVar

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import instructions_of

STACK_PREFIX = "__stack"
"""Parameters of continuations that carry the stack; they are dead once it is rebuilt."""
STOPPED = "__stopped"
RESUMED = " (resumed)"
"""The end of the qualified names of code that begins in the middle."""
RESULT_PREFIX = "__result"


class Thunk:
    """A call that is given its arguments beforehand and ignores those of its caller."""

    __slots__ = ("function", "values")

    def __init__(self, function: types.FunctionType, values: tuple[Any, ...]) -> None:
        self.function = function
        self.values = values

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*self.values)


class Stopped:
    """Where a break function has stopped: what the rest of the function takes."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values


_SKIPPED = ("CACHE", "EXTENDED_ARG")

_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}

_EFFECTS: dict[str, tuple[int, int]] = {
    "LOAD_ATTR": (1, 1),
    "STORE_ATTR": (2, 0),
    "DELETE_ATTR": (1, 0),
    "BINARY_OP": (2, 1),
    "BINARY_SUBSCR": (2, 1),
    "BINARY_SLICE": (3, 1),
    "STORE_SUBSCR": (3, 0),
    "STORE_SLICE": (4, 0),
    "DELETE_SUBSCR": (2, 0),
    "COMPARE_OP": (2, 1),
    "CONTAINS_OP": (2, 1),
    "IS_OP": (2, 1),
    "UNARY_NEGATIVE": (1, 1),
    "UNARY_POSITIVE": (1, 1),
    "UNARY_INVERT": (1, 1),
    "UNARY_NOT": (1, 1),
    "TO_BOOL": (1, 1),
    "FORMAT_SIMPLE": (1, 1),
    "FORMAT_WITH_SPEC": (2, 1),
    "CONVERT_VALUE": (1, 1),
    "CALL_INTRINSIC_1": (1, 1),
    "CALL_INTRINSIC_2": (2, 1),
    "GET_ITER": (1, 1),
    "GET_LEN": (1, 2),
    "MATCH_SEQUENCE": (1, 2),
    "MATCH_MAPPING": (1, 2),
    "MATCH_KEYS": (2, 3),
    "MATCH_CLASS": (3, 1),
    "IMPORT_NAME": (2, 1),
    "LOAD_NAME": (0, 1),
    "STORE_GLOBAL": (1, 0),
    "DELETE_GLOBAL": (0, 0),
    "LOAD_DEREF": (0, 1),
    "LOAD_BUILD_CLASS": (0, 1),
}
"""How many operands an instruction takes from the stack, and how many results it leaves."""


def stack_effect(opname: str, argument: int) -> tuple[int, int] | None:
    """Operands and results of an instruction; None if a break cannot be resumed after it."""
    if opname == "CALL":
        return argument + 2, 1
    if opname == "CALL_KW":
        return argument + 3, 1
    if opname == "LOAD_SUPER_ATTR":
        return None if argument & 1 else (3, 1)
    if opname == "CALL_FUNCTION_EX":
        return 3 + (argument & 1), 1
    if opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and argument & 1:
        return None  # leaves a NULL or not, as it turns out
    if opname == "LOAD_GLOBAL":
        return None if argument & 1 else (0, 1)
    if opname == "FORMAT_VALUE":
        return 1 + bool(argument & 4), 1
    if opname == "UNPACK_SEQUENCE":
        return 1, argument
    if opname == "UNPACK_EX":
        return 1, (argument & 0xFF) + (argument >> 8) + 1
    if opname in ("BUILD_SET", "BUILD_LIST", "BUILD_TUPLE", "BUILD_STRING", "BUILD_SLICE"):
        return argument, 1
    if opname == "BUILD_MAP":
        return 2 * argument, 1
    return _EFFECTS.get(opname)


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
    body = _body_of(function.__code__)
    passed = _enter_at(body, function.__code__, offset, stack_nulls)
    start = _after_resume(body)
    for place in range(len(stack_nulls), 0, -1):  # what is on the stack is no local of the user's
        item = body[start + place - 1]
        if isinstance(item, Instr) and item.name == "LOAD_FAST":
            body.insert(start + place, Instr("DELETE_FAST", item.arg))
    return _function(function, body, [*passed, *local_names], "resumed")


def break_function(
    function: types.FunctionType,
    offsets: tuple[int, int],
    stack_nulls: Sequence[bool],
    local_names: Sequence[str],
    effect: tuple[int, int],
) -> types.FunctionType:
    """A function that runs the instructions from one offset to another, and stops there.

    It takes the class of its result, the stack and the locals. Its result is an instance of
    that class, made of the stack as the instructions leave it and the locals; what the
    user's function returns, where an exception handler of the user's led there.
    """
    code = function.__code__
    body = _body_of(code)
    last = _position(body, _ordinal(code, offsets[1]))
    end = Label()
    results = [f"{RESULT_PREFIX}{n}" for n in range(effect[1])]
    stores = [Instr("STORE_FAST", name) for name in reversed(results)]
    body[last + 1 : last + 1] = [*stores, Instr("JUMP_FORWARD", end)]
    passed = _enter_at(body, code, offsets[0], stack_nulls)
    kept = len(stack_nulls) - effect[0]
    below = [f"{STACK_PREFIX}{n}" for n in range(kept) if not stack_nulls[n]]
    called = [Instr("PUSH_NULL"), Instr("LOAD_FAST", STOPPED)]
    body += [end, *(called if sys.version_info < (3, 13) else reversed(called))]
    body += [Instr("LOAD_FAST", name) for name in [*below, *results]]
    body += [_load_local(code, name) for name in local_names]
    body.append(Instr("BUILD_TUPLE", len(below) + len(results) + len(local_names)))
    count = 1
    if sys.version_info < (3, 12):
        body.append(Instr("PRECALL", count))
    body += [Instr("CALL", count), Instr("RETURN_VALUE")]
    pushed = 2 + len(below) + len(results) + len(local_names)
    return _function(function, body, [STOPPED, *passed, *local_names], "broken", pushed)


def _body_of(code: types.CodeType) -> Bytecode:
    """The instructions of a function, with exception handlers that keep as much of the stack.

    The depths cannot be found anew: a `try` block that is entered in the middle is reached
    by no jump to its beginning.
    """
    return Bytecode.from_code(code, conserve_exception_block_stackdepth=True)


def _load_local(code: types.CodeType, name: str) -> Instr:
    if name in code.co_cellvars:
        return Instr("LOAD_DEREF", CellVar(name))
    if name in code.co_freevars:
        return Instr("LOAD_DEREF", FreeVar(name))
    return Instr("LOAD_FAST", name)


def _enter_at(
    body: Bytecode, code: types.CodeType, offset: int, stack_nulls: Sequence[bool]
) -> list[str]:
    """Make the body begin at an offset with a given stack; the parameters that carry it."""
    names = [f"{STACK_PREFIX}{n}" for n in range(len(stack_nulls))]
    target = Label()
    body.insert(_position(body, _ordinal(code, offset)), target)
    prologue: list[Any] = []
    for name, is_null in zip(names, stack_nulls, strict=True):
        prologue.append(Instr("PUSH_NULL") if is_null else Instr("LOAD_FAST", name))
    prologue.append(Instr("JUMP_FORWARD", target))
    start = _after_resume(body)
    body[start:start] = prologue
    return [name for name, is_null in zip(names, stack_nulls, strict=True) if not is_null]


def _function(
    function: types.FunctionType,
    body: Bytecode,
    parameters: list[str],
    suffix: str,
    pushed: int = 0,
) -> types.FunctionType:
    body.argnames = parameters
    body.argcount = len(parameters)
    body.posonlyargcount = 0
    body.kwonlyargcount = 0
    body.flags &= ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    _split_pairs(body)
    _name_arguments_of_super(body, function.__code__)
    size = function.__code__.co_stacksize + pushed + len(("__class__", "self"))
    code = body.to_code(stacksize=size, compute_exception_stack_depths=False)
    qualname = f"{function.__code__.co_qualname.removesuffix(RESUMED)}{RESUMED}"
    code = code.replace(co_qualname=qualname)
    made = types.FunctionType(
        code, function.__globals__, function.__name__, None, function.__closure__
    )
    made.__module__ = function.__module__
    made.__name__ = f"{function.__code__.co_name}_{suffix}"
    made.__qualname__ = f"{function.__qualname__} ({suffix})"
    return made


def _split_pairs(body: Bytecode) -> None:
    """Load and store locals one by one: pairs of 3.13 reach 16 locals, and here are more."""
    for position in reversed(range(len(body))):
        item = body[position]
        if isinstance(item, Instr) and item.name in _PAIRS:
            arguments: Any = item.arg
            body[position : position + 1] = [
                Instr(name, argument, location=item.location)
                for name, argument in zip(_PAIRS[item.name], arguments, strict=True)
            ]


def _name_arguments_of_super(body: Bytecode, code: types.CodeType) -> None:
    """Make `super()` name what it takes: of itself it takes the first parameter, here another."""
    if "__class__" not in code.co_freevars or not code.co_argcount:
        return
    first = code.co_varnames[0]
    check = "LOAD_FAST" if sys.version_info < (3, 12) else "LOAD_FAST_CHECK"
    is_cell = first in code.co_cellvars
    receiver = Instr("LOAD_DEREF", CellVar(first)) if is_cell else Instr(check, first)
    found = [(n, item) for n, item in enumerate(body) if isinstance(item, Instr)]
    for (_, loaded), *following in reversed([*zip(found, found[1:], found[2:], strict=False)]):
        if (loaded.name, loaded.arg) != ("LOAD_GLOBAL", (True, "super")):
            continue
        at, called = following[0]
        if called.name in ("PRECALL", "CALL") and called.arg == 0:
            for n, item in following[: 2 if called.name == "PRECALL" else 1]:
                body[n] = Instr(item.name, 2, location=item.location)
            body[at:at] = [Instr("LOAD_DEREF", FreeVar("__class__")), receiver]


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
