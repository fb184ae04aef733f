"""Functions that talk to the world or look at the interpreter."""

from __future__ import annotations

import _thread
import builtins
import gc
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant, instructions_of
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.folding import has_tensor
from plait_bytecode_tracer.objects.operations import truth
from plait_bytecode_tracer.objects.representation import represent
from plait_bytecode_tracer.outside.sinks import has_plain_output
from plait_bytecode_tracer.outside.tables import global_table, written_globals
from plait_bytecode_tracer.rules.outputs import require_plain
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectKey,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SubclassVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)
from plait_utils import collection_threshold


@builtin(print)
def print_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    """Printed after the graph has run, in the order of the program."""
    if isinstance(options.get("file"), ObjectVariable):
        return _print_to(frame, options.pop("file"), values, options)
    first = tuple(_shown(frame, value) for value in values[:1])
    count = len(frame.state.deferred)
    values = (*first, *(_shown(frame, value) for value in values[1:]))
    if len(frame.state.deferred) != count:
        raise TraceBreakError("GB0005", "the code prints an object whose __str__ prints, too")
    simple = all(map(_is_simple, values))
    if written_globals(frame.state, vars(sys)) is not None:
        raise TraceBreakError("GB0005", "the code prints after it has replaced sys.stdout")
    if not simple or any(name not in ("sep", "end", "flush") for name in options):
        raise TraceBreakError("GB0005", "the code prints a value that only the graph's run gives")
    require_plain(frame, has_plain_output, "prints")
    frame.state.deferred.append((constant(print), list(values), dict(options)))
    return constant(None)


def _is_simple(value: Variable) -> bool:
    """Whether a value is the same when the graph has run as where it is printed."""
    return isinstance(value, SymbolVariable) or (
        isinstance(value, Known) and is_constant(value.value)
    )


def _shown(frame: Frame, value: Variable) -> Variable:
    """The text of an object or a container of constants, which may change before it is printed."""
    if isinstance(value, ObjectVariable):
        return frame.call(constant(str), [value], {})
    if not isinstance(value, SequenceVariable | DictVariable | SetVariable) or has_tensor(value):
        return value
    return constant(represent(frame, value)) if _holds_constants(value) else value


def _holds_constants(value: Variable) -> bool:
    match value:
        case SequenceVariable(items=items):
            return all(map(_holds_constants, items))
        case DictVariable(items=entries):
            keys = not any(isinstance(key, ObjectKey) for key in entries)
            return keys and all(map(_holds_constants, entries.values()))
        case SetVariable(items=elements):
            return not any(isinstance(element, ObjectKey) for element in elements)
        case Known():
            return is_constant(value.value) and not isinstance(value.value, Enum)
    return False


def _print_to(
    frame: Frame, file: Variable, values: tuple[Variable, ...], options: dict[str, Variable]
) -> Variable:
    """Printed into an object of the trace, in the pieces in which Python writes them."""
    between = options.pop("sep", constant(None))
    last = options.pop("end", constant(None))
    flush = options.pop("flush", constant(False))
    if options:
        raise TraceBreakError("GB0006", "print with other arguments")
    pieces: list[Variable] = []
    for value in values:
        pieces += [_or_default(between, " ")] if pieces else []
        pieces.append(frame.call(constant(str), [value], {}))
    for piece in (*pieces, _or_default(last, "\n")):
        frame.call(load_attribute(frame, file, "write"), [piece], {})
    if truth(frame, flush):
        frame.call(load_attribute(frame, file, "flush"), [], {})
    return constant(None)


def _or_default(given: Variable, default: str) -> Variable:
    return constant(default) if isinstance(given, Known) and given.value is None else given


@builtin(builtins.input, builtins.open)
def open_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    raise TraceBreakError("GB0005", "the code reads or writes a file")


@builtin(sys._getframe, inspect.currentframe, inspect.stack)
def frame_dependent(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """What looks at the frames that call it, which only Python itself has."""
    raise TraceBreakError("GB0013", "sys._getframe(), or a function like it, looks into the frame")


def module_of_frame(frame: Frame, depth: Variable | None = None) -> Variable:
    """`sys._getframemodulename(depth)`: the name of the module whose code calls."""
    count = 0 if depth is None else plain_value(depth)
    running = frame.state.frames.running
    if type(count) is int and 0 <= count < len(running):
        found = running[-1 - count]
        if not found.code.co_filename.startswith("<plait"):
            return constant(found.function.globals.get("__name__"))
    return frame_dependent(frame)


if sys.version_info >= (3, 12):
    builtin(sys._getframemodulename)(module_of_frame)


@builtin(sys.settrace, sys.setprofile, sys.set_coroutine_origin_tracking_depth)
def watches(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """What watches the frames that run from here on."""
    raise TraceBreakError("GB0013", "the code watches the frames that follow")


@builtin(sys.setrecursionlimit, sys.set_int_max_str_digits, gc.set_threshold)
def changes_interpreter(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """What leaves the tracer no room to work in, or lets the program's code run within it."""
    raise TraceBreakError("GB0018", "the code sets a limit of the interpreter's")


if sys.version_info >= (3, 12):
    builtin(sys.monitoring.set_events, sys.monitoring.set_local_events)(watches)


@builtin(vars(warnings)["_filters_mutated"])
def filters_mutated(frame: Frame) -> Variable:
    """Told after the graph has run."""
    following = instructions_of(frame.code)[0][frame.index + 1].opname
    if following != "POP_TOP":
        raise TraceBreakError("GB0002", "a result of warnings._filters_mutated")
    function = vars(warnings)["_filters_mutated"]
    frame.state.deferred.append((constant(function), [], {}))
    return constant(None)


def _ask(function: Any, answer: Callable[[], Any]) -> Builtin:
    """The rule of a function that tells a setting of the interpreter, which is guarded.

    `answer` tells it while something is compiled.
    """

    def rule(frame: Frame) -> Variable:
        value = answer()
        if not is_constant(value):
            raise TraceBreakError("GB0002", f"a call of {function.__name__}")
        text = f"{function.__name__}() is {value!r}"
        frame.state.require(None, Kind.MODE, Mode(answer, value), text)
        return constant(value)

    return rule


_SETTINGS = (
    *(sys.getrecursionlimit, sys.getswitchinterval, sys.get_int_max_str_digits),
    *(gc.isenabled, gc.get_debug, _thread.get_ident, os.getpid, os.getcwd),
)
for _setting in _SETTINGS:
    builtin(_setting)(_ask(_setting, _setting))
builtin(gc.get_threshold)(_ask(gc.get_threshold, collection_threshold))


@builtin(globals)
def globals_(frame: Frame) -> Variable:
    return global_table(frame.state, frame.function.globals)


@builtin(torch.is_tensor)
def is_tensor(frame: Frame, value: Variable) -> Variable:
    return constant(isinstance(value, TensorVariable | SubclassVariable))


@builtin(torch._jit_internal.is_scripting)
def is_scripting(frame: Frame) -> Variable:
    return constant(False)
