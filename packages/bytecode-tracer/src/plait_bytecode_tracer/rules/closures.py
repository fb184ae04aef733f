"""Rules for functions that another function makes, by their code: wrappers and decorators."""

from __future__ import annotations

import types
from collections.abc import Callable

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.values.variables import CellVariable, Variable

CodeRule = Callable[..., Variable]
"""Takes the frame, the closure's cells by name, positional and keyword arguments."""
_by_code: dict[types.CodeType, CodeRule] = {}


def inner_function(function: Callable[..., object], name: str) -> Callable[[CodeRule], CodeRule]:
    """Register how a function runs that another one makes: it takes the closure by name."""
    code = _inner_code(function.__code__, name)
    if code is None:
        raise ValueError(f"{function} makes no {name}")
    if code in _by_code:
        raise ValueError(f"{name} of {function} has two rules")

    def register(rule: CodeRule) -> CodeRule:
        _by_code[code] = rule
        return rule

    return register


def _inner_code(code: types.CodeType, name: str) -> types.CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found = constant if constant.co_name == name else _inner_code(constant, name)
            if found is not None:
                return found
    return None


def find_code_rule(code: types.CodeType) -> CodeRule | None:
    """The rule of a function that another one makes, if there is one."""
    return _by_code.get(code)


def cell_value(frame: Frame, cell: CellVariable) -> Variable:
    """What a cell of a closure holds. Breaks where it is empty."""
    if cell.content is None and cell.original is not None:
        cell.content = frame.state.wrap(cell.original.cell_contents, cell.source)
    if cell.content is None:
        raise TraceBreakError("GB0009", "an empty cell of a closure")
    return cell.content
