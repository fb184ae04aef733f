"""Specialisations: guards, the graph's call, and what follows, as one callable."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.breaking.places import Stopped
from plait_bytecode_tracer.capture import Capture
from plait_bytecode_tracer.guards import CheckWriter, first_failure
from plait_bytecode_tracer.guards.native import NATIVE, Call, guarded
from plait_bytecode_tracer.outside.locks import fails_later, holding
from plait_bytecode_tracer.residual.steps import Step
from plait_utils import dataclass, get_logger

if TYPE_CHECKING:
    from plait_bytecode_tracer.dispatch import CompiledFunction
    from plait_bytecode_tracer.failing import Failed
    from plait_bytecode_tracer.limits import Modules

MISS = object()
"""What an entry returns when one of its guards fails."""

_DIRECT = re.compile(r"return _out\[(\d+)\]")


@dataclass(slots=True)
class Entry:
    """A specialisation: its code, and what a report says of it."""

    run: Callable[..., Any]
    """Takes a value for each parameter; returns MISS where a guard fails."""
    capture: Capture
    compiled: Any
    resumed: tuple[CompiledFunction, ...] = ()
    parts: Parts | None = None
    modules: Modules = ()
    """What the call was about that it was made for."""
    is_native: bool = False
    """Whether the guards are checked by native code."""

    @property
    def source(self) -> str:
        """The generated Python: guards, the graph's call, and what follows."""
        return "" if self.parts is None else entry_source(self.parts)

    def upgrade(self) -> None:
        """Check the guards natively from now on, where that can be."""
        native, parts = NATIVE.module, self.parts
        if native is None or parts is None or self.is_native or parts.capture.state.locks.taken:
            return
        try:
            self.run = _native_run(native, parts)
        except Exception as error:  # the Python check does as well
            get_logger("tracer").warning("guards stay in Python: %s", error, exc_info=True)
            return
        self.is_native = True


@dataclass(frozen=True, slots=True)
class Parts:
    """What an entry is made of."""

    name: str
    capture: Capture
    compiled: Callable[..., Any] | None
    targets: tuple[Callable[..., Any], ...]
    """Continuations, by number."""
    argument_count: int
    failed: Failed | None = None
    """What the call does where the graph fails."""

    @property
    def namespace(self) -> dict[str, Any]:
        """The globals of generated code."""
        return {
            **self.capture.state.constants.objects,
            "_graph": self.compiled,
            "_resume": self.targets,
            "_Stopped": Stopped,
            "_step": Step,
            "_MISS": MISS,
            "_failed": self.failed,
        }

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(f"_a{n}" for n in range(self.argument_count))


def make_entry(parts: Parts, resumed: tuple[CompiledFunction, ...], *, native: bool) -> Entry:
    """An entry that checks natively where that can be, and in Python else."""
    locks = tuple(parts.capture.state.locks.taken.values())
    if locks:
        inner = replace(parts, failed=fails_later if parts.failed else None)
        run = holding(_loaded(_entry_code(parts), "entry", inner), locks, parts.failed, MISS)
        return Entry(run, parts.capture, parts.compiled, resumed, parts)
    entry = Entry(_not_made, parts.capture, parts.compiled, resumed, parts)
    if native:
        entry.upgrade()
    if not entry.is_native:
        entry.run = _loaded(_entry_code(parts), "entry", parts)
    return entry


def draft_entry(name: str, capture: Capture, argument_count: int) -> None:
    """Write and compile the Python of an entry whose graph is being compiled: it calls that, and
    what is to be done where it fails."""
    if capture.draft is not None or NATIVE.module is not None:
        return
    parts = Parts(name, capture, _not_made, (), argument_count, _not_made)
    try:
        capture.draft = capture.tree, _compiled(entry_source(parts), "entry", parts)
    except Exception as error:  # the entry raises it
        get_logger("tracer").debug("no entry is made meanwhile: %s", error)


def _entry_code(parts: Parts) -> types.CodeType:
    """The Python of an entry, by which its guards are checked."""
    draft = parts.capture.draft
    calls = parts.compiled is not None and parts.failed is not None
    if calls and draft is not None and draft[0] is parts.capture.tree:
        return draft[1]
    return _compiled(entry_source(parts), "entry", parts)


def _not_made(*args: Any) -> Any:
    return MISS


def _compiled(source: str, name: str, parts: Parts) -> types.CodeType:
    continuation = parts.capture.continuation
    if continuation is not None and continuation.route:
        source += _define("_route", ("_left",), [*continuation.route])
    return compile(source, f"<plait {name} {parts.name}>", "exec")


def _loaded(code: types.CodeType, name: str, parts: Parts) -> Callable[..., Any]:
    namespace = parts.namespace
    exec(code, namespace)
    made: Callable[..., Any] = namespace[name]
    return made


def entry_source(parts: Parts) -> str:
    """Python of one specialisation: check the guards, call the graph, do the rest."""
    capture = parts.capture
    checks = CheckWriter(capture.tree, capture.state.constants, "_MISS")
    checks.write()
    lines = ["try:", *(f"    {line}" for line in checks.lines or ["pass"])]
    lines.append("except Exception: return _MISS")
    lines += [f"{name} = {checks.value(s)}" for name, s in capture.reads.sources.items()]
    inputs = [checks.value(source) for source in capture.given]
    lines += _graph_call(parts, ", ".join(inputs))
    return _define("entry", parts.parameters, [*lines, *capture.body])


def _graph_call(parts: Parts, inputs: str) -> list[str]:
    if parts.compiled is None:
        return ["_out = ()"]
    if parts.failed is None:
        return [f"_out = _graph({inputs})"]
    return [
        "_error = None",
        f"try: _out = _graph({inputs})",
        "except BaseException as _caught: _error = [_caught]",
        f"if _error is not None: return _failed({', '.join(('_error.pop()', *parts.parameters))})",
    ]


def _define(name: str, parameters: tuple[str, ...], lines: list[str]) -> str:
    text = "\n".join(f"    {line}" for line in lines)
    return f"def {name}({', '.join(parameters)}):\n{text}\n"


def _native_run(native: types.ModuleType, parts: Parts) -> Callable[..., Any]:
    capture = parts.capture
    body, position = None, 0
    direct = _DIRECT.fullmatch(capture.body[0]) if len(capture.body) == 1 else None
    if direct is not None and parts.compiled is not None:
        position = int(direct[1])
    else:
        parameters = ("_out", *parts.parameters, *capture.reads.sources)
        source = _define("body", parameters, list(capture.body))
        body = _loaded(_compiled(source, "body", parts), "body", parts)
    reads = () if body is None else tuple(capture.reads.sources.values())
    inputs = capture.given if parts.compiled is not None else ()
    call = Call(parts.compiled, inputs, body, reads, position, MISS, parts.failed)
    made: Callable[..., Any] = guarded(
        native, capture.tree, capture.state.constants, parts.argument_count, call
    )
    return made


_BRIEF_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Recompile:
    """Why a further specialisation was made."""

    guard: str
    """What was assumed."""
    line: str
    """The user's line that needed it."""
    found: str = ""
    """What the call had instead, where a few words can say it."""
    held: int = field(default=0, compare=False)
    """How many guards were checked before it: the more, the nearer the call came to fitting."""

    def __str__(self) -> str:
        found = f": now {self.found}" if self.found else ""
        return f"{self.guard} no longer holds{found} (needed by {self.line})"


def failed_guard(entry: Entry, values: tuple[Any, ...]) -> Recompile | None:
    """Which guard of an entry fails for these arguments; None if all hold."""
    capture = entry.capture
    failure = first_failure(capture.tree, values, capture.state.constants.objects)
    if failure is None:
        return None
    if failure.number == len(capture.guards):
        return Recompile("a value", "the result", failure.found, failure.number)
    guard = capture.guards[failure.number]
    return Recompile(_brief(guard.text), guard.line, failure.found, failure.number)


def _brief(text: str) -> str:
    """What was assumed without the middle of a long list."""
    if len(text) <= _BRIEF_LENGTH:
        return text
    half = _BRIEF_LENGTH // 2
    return f"{text[:half]} … {text[-half:]}"
