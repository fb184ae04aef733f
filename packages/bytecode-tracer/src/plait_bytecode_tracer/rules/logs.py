"""Logging: records are made after the graph has run, in the order of the program."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.inlining import inline
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.tensors.ambient import bound
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.plain import own_table
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    Known,
    SequenceVariable,
    SymbolVariable,
    Variable,
)

_METHODS = ("debug", "info", "warning", "error", "critical", "log")


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


def _deferred(method: Callable[..., Any]) -> Builtin:
    def log(frame: Frame, logger: Variable, *args: Variable, **kwargs: Variable) -> Variable:
        simple = all(map(_is_simple, (*args, *kwargs.values())))
        if not simple or not set(kwargs) <= {"extra"} or not isinstance(logger, Known):
            raise TraceBreakError("GB0005", "the code logs a value that is not a constant")
        if not isinstance(logger.value, logging.Logger):
            raise TraceBreakError("GB0009", "a logger that is none")
        bound = BoundVariable(constant(method), logger)
        frame.state.deferred.append((bound, list(args), {}))
        return constant(None)

    return log


for _name in _METHODS:
    builtin(getattr(logging.Logger, _name))(_deferred(getattr(logging.Logger, _name)))


@builtin(logging.Logger.isEnabledFor)
def is_enabled_for(frame: Frame, logger: Variable, level: Variable) -> Variable:
    """Whether a logger logs at a level, asked again before each call: it keeps the answers."""
    real = logger.value if isinstance(logger, Known) else None
    known = isinstance(level, Known) and type(level.value) is int
    if not isinstance(real, logging.Logger) or not known or _is_changed(frame, real):
        method: Any = logging.Logger.isEnabledFor
        return inline(frame, method, [logger, level], {})
    ask = bound(real.isEnabledFor, (plain_value(level),))
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
