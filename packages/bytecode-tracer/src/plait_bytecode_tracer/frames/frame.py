"""Symbolic execution of one code object."""

from __future__ import annotations

import contextlib
import dis
import inspect
import linecache
import os
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import field
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NoReturn

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import (
    PythonError,
    exception_class,
    fails,
    python_error,
)
from plait_bytecode_tracer.exceptions.table import HandlerRange, handler_at
from plait_bytecode_tracer.frames.pace import Moment
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    CellVariable,
    DictVariable,
    ExceptionStorage,
    FunctionVariable,
    Known,
    ObjectVariable,
    UnreadVariable,
    Variable,
)
from plait_utils import dataclass
from plait_utils.interrupts import Interrupted

UNTRACED_FLAGS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
MAX_DEPTH = 200


class _Null(Variable):
    """The NULL that CPython pushes below callables."""

    __slots__ = ()


NULL = _Null()


class Handled(Variable):
    """What lies on the stack below a handler: that it handles an exception."""

    __slots__ = ("raised",)

    def __init__(self, raised: Variable) -> None:
        self.raised = raised


class BreakHere(Exception):
    """The trace has arrived at the instruction at which it is to end, in this frame."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame
        self.running: tuple[Frame, ...] = tuple(frame.state.frames.running)
        """The frames that run, innermost last."""
        self.line: str = frame.state.frames.line()
        """The user's line that is traced there."""


@dataclass(slots=True)
class Function:
    """A function to inline: code, globals, defaults and closure, real or traced."""

    code: types.CodeType
    globals: dict[str, Any]
    closure: list[CellVariable]
    names: tuple[str, str] | None = None
    """Its `__name__` and `__qualname__`, where the code does not tell them."""


@lru_cache(maxsize=4096)
def instructions_of(code: types.CodeType) -> tuple[tuple[dis.Instruction, ...], dict[int, int]]:
    """The instructions of a code object, and the index of each by offset."""
    found = tuple(i for i in dis.get_instructions(code) if i.opname not in ("CACHE",))
    return found, {instruction.offset: n for n, instruction in enumerate(found)}


@lru_cache(maxsize=4096)
def line_text(filename: str, number: int, function: str) -> str:
    """A source line for people."""
    text = linecache.getline(filename, number).strip()
    return f"{os.path.basename(filename)}:{number} in {function}: {text}"


def handler_of_exceptions(code: types.CodeType, offset: int) -> HandlerRange | None:
    """Where exceptions at `offset` are handled; None if they leave the function.

    From 3.12 comprehensions are part of the function, and what raises in one goes to code
    that restores the function's own variables and raises again. That handles nothing by
    itself, nor does the code around a generator that replaces its StopIteration.
    """
    found = handler_at(code, offset)
    instructions, by_offset = instructions_of(code)
    last = found
    while last is not None:
        index = by_offset[last.target]
        if instructions[index].opname not in ("SWAP", "CALL_INTRINSIC_1"):
            return found
        while instructions[index].opname != "RERAISE":
            index += 1
        last = handler_at(code, instructions[index].offset)
    return None


class Handling(Enum):
    """What a handler of exceptions does."""

    ACTS = auto()
    """It is that of an `except` or `finally`, which does what the user wrote."""
    LEAVES = auto()
    """It is that of a `with` block, whose manager is told of the exception."""
    CLEANS = auto()
    """It takes from the stack what another handler has left."""


@lru_cache(maxsize=4096)
def _handling(code: types.CodeType, target: int) -> Handling:
    instructions, by_offset = instructions_of(code)
    first, second = instructions[by_offset[target] :][:2]
    if first.opname != "PUSH_EXC_INFO":
        return Handling.CLEANS
    return Handling.LEAVES if second.opname == "WITH_EXCEPT_START" else Handling.ACTS


def _may_act(leave: Variable) -> bool:
    """Whether the `__exit__` of a manager may end an exception, or do more than end a mode."""
    method = leave.function if isinstance(leave, BoundVariable) else leave
    function = method.value if isinstance(method, Known) else method
    if isinstance(function, FunctionVariable):
        return not function.code.co_filename.startswith(TORCH_FOLDER)
    if not isinstance(function, types.FunctionType):
        return True
    is_of_torch = function.__code__.co_filename.startswith(TORCH_FOLDER)
    return not is_of_torch and function is not contextlib.nullcontext.__exit__


class _Referenced:
    """What weak references may refer to."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True)
class Frame(_Referenced):
    """A frame that is being traced."""

    state: TraceState
    function: Function
    locals: dict[str, Variable]
    depth: int = 0
    parent: Frame | None = None
    """The frame that called this one."""
    is_direct: bool = False
    """Whether what this frame returns is just what the caller's call instruction gives."""
    step: int = 0
    """The number of the instruction that is being traced, over all frames."""
    stack: list[Variable] = field(default_factory=list)
    cells: dict[str, CellVariable] = field(default_factory=dict)
    index: int = 0
    keyword_names: tuple[str, ...] = ()
    namespace: Variable | None = None
    """What the body of a class stores its names in."""
    snapshot: DictVariable | None = None
    """The dict that `locals()` gives, once it has been asked for."""
    handled: list[Variable] = field(default_factory=list)
    """The exceptions that are being handled, innermost last."""
    shown: Variable | None = None
    """The frame as an object of the program."""
    result: Variable | None = None
    running: bool = False
    left_at: int | None = None
    """The offset of the instruction at which an exception has left it."""
    sent: Variable | None = None
    """What is sent into a generator's frame."""
    yielded: Variable | None = None
    """What a generator's frame has just yielded."""

    def __post_init__(self) -> None:
        self.state.frames.made.append(weakref.ref(self))

    @property
    def is_312(self) -> bool:
        """Whether bytecode is that of Python 3.12 or newer."""
        return sys.version_info >= (3, 12)

    @property
    def code(self) -> types.CodeType:
        return self.function.code

    @property
    def cell_names(self) -> tuple[str, ...]:
        """The variables that live in cells."""
        return self.code.co_cellvars + self.code.co_freevars

    @property
    def instruction(self) -> dis.Instruction:
        instructions = instructions_of(self.code)[0]
        return instructions[min(self.index, len(instructions) - 1)]

    @property
    def moment(self) -> Moment:
        """The instruction at which the frame is."""
        return Moment(self.step, self.code, self.instruction.offset)

    def line(self) -> str:
        """The user's source line that is being traced."""
        code = self.code
        return line_text(code.co_filename, self._line_number(), code.co_name)

    def lines(self) -> tuple[str, ...]:
        """The lines being traced in this frame and in those that called it, innermost first."""
        frames: list[Frame] = [self]
        while (parent := frames[-1].parent) is not None:
            frames.append(parent)
        found = [each.line() for each in frames if not each.code.co_filename.startswith("<plait")]
        return tuple(found) or (self.line(),)

    def _line_number(self) -> int:
        return self.line_at(self.instruction)

    def last_line(self) -> int | None:
        """The line, if it has one, of the instruction that runs, or of the last one that ran."""
        instructions, by_offset = instructions_of(self.code)
        last = self.instruction
        if self.left_at is not None:
            last = instructions[by_offset[self.left_at]]
        elif self.result is not None and self.index > 0:
            last = instructions[self.index - 1]
        return None if last.positions is None else last.positions.lineno

    def line_at(self, instruction: dis.Instruction) -> int:
        """The line of an instruction."""
        positions = instruction.positions
        found = positions.lineno if positions is not None else None
        return found or self.code.co_firstlineno

    def run(self) -> Variable:
        """Trace to the return; its value. Raises TraceBreakError, BreakHere."""
        if self.depth > MAX_DEPTH:
            raise TraceBreakError("GB0002", "recursion deeper than the tracer follows")
        if self.code.co_flags & UNTRACED_FLAGS:
            raise TraceBreakError("GB0011", f"{self.code.co_name} is a coroutine")
        self._loop_with_line()
        if self.result is None:
            raise TraceBreakError("GB0011", f"{self.code.co_name} is a generator")
        return self.result

    def next_yielded(self) -> Variable | None:
        """Run a generator's frame to its next yield; None where it has returned."""
        if self.result is not None:
            self.result = Known(None)  # what it returned is told once
            return None
        if self.running:
            fails(ValueError, f"{self.kind} already executing")
        self.yielded = None
        self.running = True
        try:
            self._loop_with_line()
        except PythonError as error:
            self.leave(error)
        finally:
            self.running = False
        return self.yielded

    def leave(self, error: PythonError) -> NoReturn:
        """Raise what a generator's caller gets where an exception has left the generator."""
        self.result = Known(None)
        if not issubclass(exception_class(error.value), StopIteration):
            raise error
        made = python_error(RuntimeError(f"{self.kind} raised StopIteration"))
        storage = made.value.base if isinstance(made.value, ObjectVariable) else None
        assert isinstance(storage, ExceptionStorage)
        storage.fields.update(__cause__=error.value, __context__=error.value)
        storage.fields["__suppress_context__"] = Known(True)
        made.is_new = False
        raise made

    def is_handling(self) -> bool:
        """Whether the user's code would see an exception that is raised here.

        A mode of torch's ends when a graph fails, as it does at the end of its `with` block.
        """
        code = self.code
        if not code.co_exceptiontable or code.co_filename.startswith(TORCH_FOLDER):
            return False
        found = handler_of_exceptions(code, self.instruction.offset)
        while found is not None:
            handling = _handling(code, found.target)
            if handling is Handling.ACTS:
                return True
            if handling is Handling.LEAVES and _may_act(self.stack[found.depth - 1]):
                return True
            found = handler_of_exceptions(code, found.target)
        return False

    @property
    def kind(self) -> str:
        """What Python calls a frame that suspends."""
        return "coroutine" if self.code.co_flags & inspect.CO_COROUTINE else "generator"

    def _loop_with_line(self) -> None:
        """Run; what is traced belongs to this frame's line, unless the frame is torch's own."""
        shown = self.depth == 0 or not self.code.co_filename.startswith((TORCH_FOLDER, "<plait"))
        frames = self.state.frames
        if shown:
            frames.lines.append(self.line)
            frames.files.append(self.code.co_filename)
        frames.running.append(self)
        frames.waiting.pop(id(self), None)
        try:
            self._loop()
        except (TraceBreakError, PythonError) as error:
            if error.frame is None:
                error.frame = self
            raise
        finally:
            frames.running.pop()
            if shown:
                frames.lines.pop()
                frames.files.pop()

    def _loop(self) -> None:
        from plait_bytecode_tracer.opcodes import handlers, untraced

        instructions, _ = instructions_of(self.code)
        pace, known = self.state.pace, handlers()
        while self.result is None and self.yielded is None:
            instruction = instructions[self.index]
            pace.steps += 1
            self.step = pace.steps
            if self.step == pace.break_step:
                raise BreakHere(self)
            if pace.arrived:
                raise Interrupted
            pace.require_brief()
            handler = known.get(instruction.opname)
            if handler is None:
                raise TraceBreakError("GB0001", f"the opcode {untraced(instruction.opname)}")
            try:
                target = handler(self, instruction)
            except PythonError as error:
                target = self.handle(error, instruction.offset)
            self.index = self.index + 1 if target is None else target

    def handle(self, error: PythonError, offset: int) -> int:
        """Unwind to the handler of an exception raised at `offset`; where to go on."""
        from plait_bytecode_tracer.exceptions.tracebacks import enter_traceback

        enter_traceback(self, error, offset)
        last = offset if error.last is None else error.last
        error.last = None
        found = handler_of_exceptions(self.code, offset)
        if found is None:
            self.left_at = last
            try:
                raise error
            finally:  # else it would lead to itself, and keep what the call was given
                del error
        del self.stack[found.depth :]
        if found.pushes_offset:
            self.push(Known(last))
        self.push(error.value)
        return self.index_of(found.target)

    def call(
        self, function: Variable, args: list[Variable], kwargs: dict[str, Variable]
    ) -> Variable:
        """`function(*args, **kwargs)`, called by this frame."""
        from plait_bytecode_tracer.frames.calls import call  # which runs frames

        return call(self, function, args, kwargs)

    # Used by handlers.

    def push(self, value: Variable) -> None:
        self.stack.append(value)

    def pop(self) -> Variable:
        return self.stack.pop()

    def pop_many(self, count: int) -> list[Variable]:
        if count == 0:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def index_of(self, offset: int) -> int:
        return instructions_of(self.code)[1][offset]

    def local(self, name: str) -> Variable | None:
        """What a local variable holds, which is guarded from now on; None if nothing."""
        value = self.locals.get(name)
        if isinstance(value, UnreadVariable):
            value = self.locals[name] = self.state.wrap(value.value, value.source)
        return value

    def cell(self, name: str) -> CellVariable:
        if name not in self.cells:
            self.cells[name] = CellVariable()
        return self.cells[name]


Handler = Callable[[Frame, dis.Instruction], "int | None"]


def constant(value: Any) -> Known:
    """A constant of the traced code."""
    return Known(value)
