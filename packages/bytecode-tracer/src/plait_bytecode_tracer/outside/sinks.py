"""Where what a call prints, logs and warns of goes, and whether code of the program's sees it.

A trace has that shown after its graph has run. Python's own streams and handlers, and those of
installed packages, show or keep it; one of the program's may do anything with it, which the rest
of the call may read, or raise. The functions that tell are asked again before each call.
"""

from __future__ import annotations

import logging
import os
import sys
import types
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from plait_bytecode_tracer.values.plain import own_table

_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = os.path.dirname(os.__file__) + os.sep
_IMMUTABLE = 1 << 8
"""The flag of classes that C defines, as C's: Py_TPFLAGS_IMMUTABLETYPE."""
_FUNCTIONS = (types.FunctionType, types.MethodType, staticmethod, classmethod)


def has_plain_output() -> bool:
    """Whether `sys.stdout` is open, or missing, and no code of the program's writes to it."""
    return _shows_plainly(sys.stdout)


def has_plain_warnings() -> bool:
    """Whether no code of the program's shows the warnings."""
    shown = (getattr(warnings, name, None) for name in _OF_WARNINGS)
    return _shows_plainly(sys.stderr) and not any(map(_is_of_program, shown))


_OF_WARNINGS = ("showwarning", "formatwarning", "_showwarnmsg", "_showwarnmsg_impl")


def named(logger: logging.Logger) -> logging.Logger | str:
    """A logger by its name, if that finds it: guards that ask of it may be stored then."""
    is_found = isinstance(logger.name, str) and logging.getLogger(logger.name) is logger
    return logger.name if is_found else logger


def is_enabled(logger: logging.Logger | str, level: int) -> bool:
    """Whether a logger logs at a level."""
    return _logger(logger).isEnabledFor(level)


def has_plain_log(logger: logging.Logger | str) -> bool:
    """Whether no code of the program's makes, filters, formats or handles a logger's records."""
    logger = _logger(logger)
    if logging.getLogRecordFactory() is not logging.LogRecord:
        return False
    handlers = list(_handlers(logger))
    if not handlers and logging.lastResort is not None:
        handlers.append(logging.lastResort)
    parts: list[object] = [logger, *logger.filters]
    for handler in handlers:
        target = getattr(handler, "target", None)  # of one that keeps records for another
        parts += [handler, *handler.filters, handler.formatter, target]
    return not any(map(_has_code_of_program, parts)) and all(
        _shows_plainly(getattr(handler, "stream", None)) for handler in handlers
    )


def log_at(
    logger: logging.Logger,
    level: int,
    file: str,
    line: int,
    function: str,
    message: object,
    *args: object,
) -> None:
    """Log as code of a function does at a line."""
    if logger.isEnabledFor(level):
        name = logger.name
        logger.handle(logger.makeRecord(name, level, file, line, message, args, None, function))


def _logger(logger: logging.Logger | str) -> logging.Logger:
    return logging.getLogger(logger) if isinstance(logger, str) else logger


def _handlers(logger: logging.Logger) -> Iterable[logging.Handler]:
    """The handlers that a logger's records come to."""
    found: logging.Logger | None = logger
    while found is not None:
        yield from found.handlers
        found = found.parent if found.propagate else None


def _shows_plainly(stream: Any) -> bool:
    """Whether text can be written to a stream, which runs no code of the program's."""
    return stream is None or not (_has_code_of_program(stream) or getattr(stream, "closed", False))


def _has_code_of_program(value: object) -> bool:
    """Whether a function is of the program's, or one of an object's own and its classes'."""
    if isinstance(value, _FUNCTIONS):
        return _is_of_program(value)
    classes = (cls for cls in type(value).__mro__ if not cls.__flags__ & _IMMUTABLE)
    tables: list[Mapping[str, object]] = list(map(vars, classes))
    if type(value).__dictoffset__:
        tables.append(own_table(value))
    return any(_is_of_program(each) for table in tables for each in table.values())


def _is_of_program(value: object) -> bool:
    """Whether a value is a function that neither Python nor an installed package defines."""
    if not isinstance(value, _FUNCTIONS):
        return False
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    file = getattr(code, "co_filename", _STANDARD)
    is_standard = file.startswith((_STANDARD, "<frozen "))
    return not (is_standard or any(part in file for part in _INSTALLED))
