"""Graph breaks: what Python does where the trace ends, at any depth of calls.

The instruction that breaks runs natively in its own frame, and that frame in those of its
callers: each live frame becomes a break function (see `resume`) whose pending call calls
the break function of the frame inside it. All stop right after the instruction. What is
left of all live frames then is one function, the continuation, which is traced as a whole:
a break costs one graph more however deep it lies.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait_bytecode_tracer.errors import GraphBreak, TraceBreakError
from plait_bytecode_tracer.frame import NULL, Frame, Handled, instructions_of
from plait_bytecode_tracer.rebuild import Rebuilder
from plait_bytecode_tracer.resume import (
    STACK_PREFIX,
    Thunk,
    break_function,
    resume_function,
    stack_effect,
)

MAX_CONTINUATIONS = 16
"""How often a call is continued by compiled code; the rest of it then runs as plain Python."""
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
_LEVEL = "__plait_continuations__"


@dataclass(frozen=True, slots=True)
class Continuation:
    """What follows a graph break: how Python goes on."""

    kind: str
    """"rest", "jump" or "eager"."""
    functions: tuple[types.FunctionType, ...]
    """Where to go on. Of "rest": for all live frames, and then for fewer and fewer of the
    outer ones; of "jump": for a true and a false condition."""


# Where to break.


def break_steps(innermost: Frame, reason: GraphBreak) -> list[int]:
    """Steps of the trace at which it can end, innermost frame first."""
    if reason.code == "GB0014":
        return []
    chain = [innermost]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    found: list[int] = []
    for position, frame in enumerate(chain):
        looks_here = reason.code == "GB0013" and position == 0
        looks_here |= frame.namespace is not None  # the body of a class, which has no locals
        inner = position + 1 < len(chain)
        if looks_here or frame.handled or (inner and not _can_resume(frame)):
            continue
        if all(_passes_on(frame) for frame in chain[position:-1]):
            found.append(frame.step)
    return found


def _can_resume(frame: Frame) -> bool:
    """Whether a frame that was called can go on after its instruction."""
    instruction = frame.instruction
    return _is_jump(frame) or stack_effect(instruction.opname, instruction.arg or 0) is not None


def _is_jump(frame: Frame) -> bool:
    opname = frame.instruction.opname
    is_jump = opname.startswith("POP_JUMP") and opname.endswith(("TRUE", "FALSE"))
    return is_jump and not frame.is_covered()


def _passes_on(frame: Frame) -> bool:
    """Whether what a frame returns is what the pending call of its caller gives."""
    caller = frame.parent
    return (
        caller is not None
        and frame.is_direct
        and not caller.handled
        and not caller.is_covered()
        and caller.instruction.opname in _CALLS
        and all(cell.original is not None for cell in frame.function.closure)
    )


# How to go on.


@dataclass(slots=True)
class _Live:
    """A live frame at the break, as Python text."""

    frame: Frame
    function: types.FunctionType
    stack: list[str]
    nulls: list[bool]
    locals: dict[str, str]

    @property
    def values(self) -> list[str]:
        """The stack without NULLs, then the locals."""
        return [*self.present(len(self.stack)), *self.locals.values()]

    def present(self, depth: int) -> list[str]:
        return [v for v, n in zip(self.stack[:depth], self.nulls[:depth], strict=True) if not n]

    def following(self) -> int:
        """The offset after the frame's instruction."""
        instructions, _ = instructions_of(self.frame.code)
        after = self.frame.index + 1
        return instructions[after].offset if after < len(instructions) else 0

    def first(self) -> int:
        """The offset of the first instruction of a call: it names the keywords."""
        instructions, _ = instructions_of(self.frame.code)
        index = self.frame.index
        while index and instructions[index - 1].opname in ("PRECALL", "KW_NAMES"):
            index -= 1
        return instructions[index].offset

    def effect(self) -> tuple[int, int] | None:
        """How many operands the instruction takes, and how many results it leaves."""
        return stack_effect(self.frame.instruction.opname, self.frame.instruction.arg or 0)


def go_on(root: types.FunctionType, frame: Frame, rebuilder: Rebuilder) -> Continuation:
    """Write what follows a break at a frame's instruction; what to compile next.

    Raises TraceBreakError where a live value or frame cannot be made real.
    """
    chain = [frame]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    level = getattr(root, _LEVEL, 0) + 1
    live = [_live(root, inner, rebuilder) for inner in chain]
    rebuilder.effects()
    for inner in chain:
        if any(c.original is None and id(c) in rebuilder.names for c in inner.cells.values()):
            raise TraceBreakError("GB0009", "a function made before shares variables with the rest")
    innermost = live[0]
    if len(live) == 1 and (level > MAX_CONTINUATIONS or not _can_resume(frame)):
        return _as_plain_python(innermost, rebuilder)
    if level > MAX_CONTINUATIONS:
        raise TraceBreakError("GB0001", "more continuations than are compiled")
    made = _jump(live, rebuilder) if _is_jump(frame) else _rest(live, rebuilder)
    for function in made.functions:
        setattr(function, _LEVEL, level)
    return made


def _live(root: types.FunctionType, frame: Frame, rebuilder: Rebuilder) -> _Live:
    stack = ["None" if isinstance(v, Handled) else rebuilder.value(v) for v in frame.stack]
    nulls = [value is NULL for value in frame.stack]
    held = {
        name: rebuilder.value(value)
        for name, value in frame.locals.items()
        if not name.startswith(STACK_PREFIX) and value is not NULL
    }
    for name in frame.code.co_cellvars:
        cell = frame.cells.get(name)
        if cell is not None and cell.content is not None:
            held[name] = rebuilder.value(cell.content)
    if frame.parent is None:
        return _Live(frame, root, stack, nulls, held)
    closure = tuple(cell.original for cell in frame.function.closure if cell.original is not None)
    code = frame.code
    function = types.FunctionType(
        code, frame.function.globals, code.co_name, None, closure if code.co_freevars else None
    )
    return _Live(frame, function, stack, nulls, held)


def _as_plain_python(live: _Live, rebuilder: Rebuilder) -> Continuation:
    if _is_jump(live.frame):  # from 3.13 it takes nothing but a bool
        live.stack[-1] = f"bool({live.stack[-1]})"
    target = resume_function(live.function, live.first(), live.nulls, list(live.locals))
    rebuilder.lines.append(f"return _resume[0]({', '.join(live.values)})")
    return Continuation("eager", (target,))


def _jump(live: list[_Live], rebuilder: Rebuilder) -> Continuation:
    """Both ways of a branch on a value that only the graph's run gives."""
    inner = live[0]
    depth = len(inner.stack) - 1
    instruction = inner.frame.instruction
    names = list(inner.locals)
    given = [*inner.present(depth), *inner.locals.values()]
    for outer in live[1:]:
        given += outer.values
    functions = []
    for offset in (instruction.argval, inner.following()):
        way = resume_function(inner.function, offset, inner.nulls[:depth], names)
        functions.append(_chained([way, *_outer_rests(live[1:])], live[1:]))
    on_true = instruction.opname.endswith("TRUE")
    chosen = f"_resume[0 if bool({inner.stack[-1]}) is {on_true} else 1]"
    rebuilder.lines.append(f"return {chosen}({', '.join(given)})")
    return Continuation("jump", tuple(functions))


def _rest(live: list[_Live], rebuilder: Rebuilder) -> Continuation:
    """Run the instruction in its frame, inside of the frames around it, and go on after it."""
    name = rebuilder.state.constants.name
    inner = live[0]
    effect = inner.effect()
    assert effect is not None
    kept = inner.nulls[: len(inner.nulls) - effect[0]]
    results = [*kept, *[False] * effect[1]]
    rest = resume_function(inner.function, inner.following(), results, list(inner.locals))
    offsets = inner.first(), inner.frame.instruction.offset
    breaking = break_function(inner.function, offsets, inner.nulls, list(inner.locals), effect)
    call = f"{name(breaking)}({', '.join(['_Stopped', *inner.values])})"
    thunk = (name(breaking), ["_Stopped", *inner.values])
    for depth, outer in enumerate(live[1:]):
        called = f"_call{depth}"
        made = f"{name(Thunk)}({thunk[0]}, ({', '.join(thunk[1])},))"
        rebuilder.lines.append(f"{called} = {made}")
        function, stack = _pending_call(outer, called)
        given = ["_Stopped", *stack, *outer.locals.values()]
        call = f"{name(function)}({', '.join(given)})"
        thunk = (name(function), given)
    outers = live[1:]
    rests = [rest, *_outer_rests(outers)]
    count = len(outers)
    lines = [f"_w{count} = {call}", f"if _w{count}.__class__ is not _Stopped: return _w{count}"]
    lines.append(f"_w{count} = _w{count}.values")
    for depth in range(count - 1, -1, -1):  # from the outermost frame inwards
        outer = outers[depth]
        place = len(outer.present(len(outer.stack)))
        at = depth + 1
        lines.append(f"_w{depth} = _w{at}[{place}]")
        others = [f"*_without(_w{n + 1}, {len(outers[n].present(len(outers[n].stack)))})"
                  for n in range(at, count)]  # fmt: skip
        gone = f"_resume[{at}]({', '.join([f'*_w{at}', *others])})"
        lines.append(f"if _w{depth}.__class__ is not _Stopped: return {gone}")
        lines.append(f"_w{depth} = _w{depth}.values")
    others = [f"*_without(_w{n + 1}, {len(outers[n].present(len(outers[n].stack)))})"
              for n in range(count)]  # fmt: skip
    lines.append(f"return _resume[0]({', '.join(['*_w0', *others])})")
    if count:
        lines = [line.replace("_without", name(without)) for line in lines]
    rebuilder.lines += lines
    functions = [_chained(rests[n:], outers[n:]) for n in range(count + 1)]
    return Continuation("rest", tuple(functions))


def without(values: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """Values without the one at a place: the result of the pending call."""
    return values[:place] + values[place + 1 :]


def _pending_call(live: _Live, called: str) -> tuple[types.FunctionType, list[str]]:
    """The break function of a frame that waits for a call, and its stack: the call is `called`."""
    instruction = live.frame.instruction
    argument = instruction.arg or 0
    if instruction.opname == "CALL_FUNCTION_EX":
        arguments = ["()", *["{}"] * (argument & 1)]
    else:
        arguments = [*["None"] * argument, *["()"] * (instruction.opname == "CALL_KW")]
    pair = [False, True] if sys.version_info >= (3, 13) else [True, False]
    operands, nulls = [called, *arguments], [*pair, *[False] * len(arguments)]
    effect = live.effect()
    assert effect is not None
    offsets = live.first(), instruction.offset
    all_nulls = [*live.nulls, *nulls]
    function = break_function(live.function, offsets, all_nulls, list(live.locals), effect)
    return function, [*live.present(len(live.stack)), *operands]


def _outer_rests(outers: Sequence[_Live]) -> list[types.FunctionType]:
    """For each frame that waits for a call, what follows the call."""
    return [
        resume_function(o.function, o.following(), [*o.nulls, False], list(o.locals))
        for o in outers
    ]


def _chained(rests: Sequence[types.FunctionType], outers: Sequence[_Live]) -> types.FunctionType:
    """One function that goes on with frame after frame, from the innermost outwards.

    It takes what the first takes; then, for each frame around it, the stack below the
    pending call and the locals.
    """
    if len(rests) == 1:
        return rests[0]
    count = rests[0].__code__.co_argcount
    names = [f"v{n}" for n in range(count)]
    lines = [f"    r = _rest0({', '.join(names)})"]
    for number, outer in enumerate(outers, 1):
        below = len(outer.present(len(outer.stack)))
        fresh = [f"v{count + n}" for n in range(below + len(outer.locals))]
        count += len(fresh)
        names += fresh
        given = [*fresh[:below], "r", *fresh[below:]]
        lines.append(f"    r = _rest{number}({', '.join(given)})")
    first = rests[0].__name__
    source = f"def continuation({', '.join(names)}):\n" + "\n".join([*lines, "    return r\n"])
    namespace: dict[str, Any] = {f"_rest{n}": rest for n, rest in enumerate(rests)}
    exec(compile(source, "<plait continuation>", "exec"), namespace)
    made: types.FunctionType = namespace["continuation"]
    made.__name__ = first
    made.__qualname__ = rests[0].__qualname__
    made.__module__ = rests[0].__module__
    return made
