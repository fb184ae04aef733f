"""Logging: records are made after the graph has run, in the order of the program."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.variables import BoundVariable, Known, Variable, is_constant

_METHODS = ("debug", "info", "warning", "error", "critical", "log")


def _deferred(method: Callable[..., Any]) -> Builtin:
    def log(frame: Frame, logger: Variable, *args: Variable, **kwargs: Variable) -> Variable:
        simple = all(isinstance(arg, Known) and is_constant(arg.value) for arg in args)
        if not simple or kwargs or not isinstance(logger, Known):
            raise TraceBreakError("GB0005", "the code logs a value that is not a constant")
        if not isinstance(logger.value, logging.Logger):
            raise TraceBreakError("GB0009", "a logger that is none")
        bound = BoundVariable(constant(method), logger)
        frame.state.deferred.append((bound, list(args), {}))
        return constant(None)

    return log


for _name in _METHODS:
    builtin(getattr(logging.Logger, _name))(_deferred(getattr(logging.Logger, _name)))
