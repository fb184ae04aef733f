"""Logging: records are made after the graph has run, in the order of the program."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.inlining import inline
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.operations import truth
from plait_bytecode_tracer.outside.sinks import has_plain_log, is_enabled, log_at, named
from plait_bytecode_tracer.rules.outputs import require_plain
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.tensors.ambient import bound
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.plain import own_table
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    SequenceVariable,
    SymbolVariable,
    Variable,
    is_none,
)

_LEVELS = {
    logging.Logger.debug: logging.DEBUG,
    logging.Logger.info: logging.INFO,
    logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR,
    logging.Logger.critical: logging.CRITICAL,
}
_NOTHING = {"exc_info", "extra", "stack_info"}
"""Arguments that ask for nothing where they are None."""
_SOURCE = os.path.normcase(logging.Logger.info.__code__.co_filename)
"""The file of `logging` itself, whose lines are not those that log."""


def _is_simple(value: Variable) -> bool:
    """Whether a value is the same when the graph has run, and cannot change before."""
    match value:
        case SymbolVariable():
            return True
        case Known():
            return is_constant(value.value)
        case SequenceVariable(kind=kind, items=items) if kind in (tuple, torch.Size):
            return all(map(_is_simple, items))
    return False


def _deferred(level: int) -> Builtin:
    def log_it(
        frame: Frame, logger: Variable, message: Variable, *args: Variable, **kwargs: Variable
    ) -> Variable:
        return log(frame, logger, constant(level), message, *args, **kwargs)

    return log_it


for _method, _level in _LEVELS.items():
    builtin(_method)(_deferred(_level))


@builtin(logging.Logger.log)
def log(
    frame: Frame,
    logger: Variable,
    level: Variable,
    message: Variable,
    *args: Variable,
    **kwargs: Variable,
) -> Variable:
    """A record is made of what is enabled, with the line that logs."""
    real = logger.value if isinstance(logger, Known) else None
    if not isinstance(real, logging.Logger):
        raise TraceBreakError("GB0009", "a logger that is none")
    if not isinstance(level, Known) or type(level.value) is not int:
        raise TraceBreakError("GB0005", "the code logs at a level that is no number")
    if not truth(frame, frame.call(load_attribute(frame, logger, "isEnabledFor"), [level], {})):
        return constant(None)
    asks = not (kwargs.keys() <= _NOTHING and all(map(is_none, kwargs.values())))
    if asks or not all(map(_is_simple, (message, *args))):
        raise TraceBreakError("GB0005", "the code logs a value that is not a constant")
    require_plain(frame, bound(has_plain_log, (named(real),)), "logs")
    place = _line(frame)
    frame.state.deferred.append((constant(log_at), [logger, level, *place, message, *args], {}))
    return constant(None)


def _line(frame: Frame) -> list[Variable]:
    """The file, line and function that log. Raises TraceBreakError where it is outside."""
    found: Frame | None = frame
    while found is not None and os.path.normcase(found.code.co_filename) == _SOURCE:
        found = found.parent
    if found is None:
        raise TraceBreakError("GB0005", "the code logs for a line outside of the traced code")
    line = found.line_at(found.instruction)
    return [constant(found.code.co_filename), constant(line), constant(found.code.co_name)]


@builtin(logging.Logger.isEnabledFor)
def is_enabled_for(frame: Frame, logger: Variable, level: Variable) -> Variable:
    """Whether a logger logs at a level, asked again before each call: it keeps the answers."""
    real = logger.value if isinstance(logger, Known) else None
    known = isinstance(level, Known) and type(level.value) is int
    if not isinstance(real, logging.Logger) or not known or _is_changed(frame, real):
        method: Any = logging.Logger.isEnabledFor
        return inline(frame, method, [logger, level], {})
    ask = bound(is_enabled, (named(real), plain_value(level)))
    answer = ask()
    text = f"{real.name}.isEnabledFor({plain_value(level)}) is {answer}"
    frame.state.require(None, Kind.MODE, Mode(ask, answer), text)
    return constant(answer)


def _is_changed(frame: Frame, logger: logging.Logger) -> bool:
    """Whether the trace has changed a logger, one above it, or what all share."""
    state = frame.state
    objects: list[Any] = [logger.manager]
    each: logging.Logger | None = logger
    while each is not None:
        objects.append(each)
        each = each.parent
    tables = (state.world.wrapped.get(id(own_table(one))) for one in objects)
    written = any(isinstance(table, DictVariable) and table.writes for table in tables)
    return written or any(state.world.attributes.get(id(one)) for one in objects)
