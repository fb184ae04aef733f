"""Regular expressions: compiled while tracing, and matched on strings that are known."""

from __future__ import annotations

import re
import struct
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import describe, plain_value
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.iterators import over
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, Variable

_compile: Any = vars(re)["_compile"]


@builtin(_compile)
def compile_(frame: Frame, pattern: Variable, flags: Variable) -> Variable:
    """`re._compile`, which all functions of the module call; it has no effect but on its cache."""
    given = plain_value(pattern), plain_value(flags)
    if not isinstance(given[0], str | bytes | re.Pattern) or not isinstance(given[1], int):
        raise TraceBreakError("GB0002", f"a regular expression from a {describe(pattern)}")
    try:
        return constant(_compile(*given))
    except (re.error, TypeError, ValueError, OverflowError) as error:
        raise python_error(error) from error


@builtin(re.Pattern.finditer)
def finditer(
    frame: Frame, pattern: Variable, string: Variable, *bounds: Variable, **named: Variable
) -> Variable:
    real, given = plain_value(pattern), [plain_value(value) for value in (string, *bounds)]
    options = {name: plain_value(value) for name, value in named.items()}
    try:
        found = list(real.finditer(*given, **options))
    except TypeError as error:
        raise python_error(error) from error
    return over([constant(match) for match in found])


@builtin(struct.iter_unpack, struct.Struct.iter_unpack)
def iter_unpack(frame: Frame, layout: Variable, data: Variable) -> Variable:
    given = plain_value(layout), plain_value(data)
    if not isinstance(given[0], struct.Struct | str | bytes):
        fails(TypeError, "Struct() argument 1 must be a str or bytes object")
    try:
        found = list(
            struct.Struct.iter_unpack(*given)
            if isinstance(given[0], struct.Struct)
            else struct.iter_unpack(*given)
        )
    except (struct.error, TypeError) as error:
        raise python_error(error) from error
    return over([constant(part) for part in found])


@builtin(re.Pattern.sub)
def sub(
    frame: Frame, pattern: Variable, repl: Variable, string: Variable, count: Variable | None = None
) -> Variable:
    return _substituted(frame, pattern, repl, string, count)[0]


@builtin(re.Pattern.subn)
def subn(
    frame: Frame, pattern: Variable, repl: Variable, string: Variable, count: Variable | None = None
) -> Variable:
    found = _substituted(frame, pattern, repl, string, count)
    return SequenceVariable(list(found), tuple)


def _substituted(
    frame: Frame, pattern: Variable, repl: Variable, string: Variable, count: Variable | None
) -> tuple[Variable, Variable]:
    """The new string and the number of replacements; a function of the program is traced."""
    limit = constant(0) if count is None else count
    if isinstance(repl, Known) and isinstance(repl.value, str | bytes):
        found = fold(re.Pattern.subn, [pattern, repl, string, limit], {})
        result: tuple[Any, Any] = plain_value(found)
        return constant(result[0]), constant(result[1])
    real, most = plain_value(pattern), plain_value(limit)
    text: Any = plain_value(string)
    if not isinstance(text, str | bytes):
        fails(TypeError, "expected string or bytes-like object")
    empty: Any = text[:0]
    pieces: list[Any] = []
    place, number = 0, 0
    for match in real.finditer(text):
        if most and number == most:
            break
        made = plain_value(frame.call(repl, [constant(match)], {}))
        if not isinstance(made, type(text)):
            raise TraceBreakError("GB0006", "a replacement that is no string")
        pieces += [text[place : match.start()], made]
        place, number = match.end(), number + 1
    return constant(empty.join([*pieces, text[place:]])), constant(number)
