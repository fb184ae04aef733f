"""Rules for functions that the trace carries out itself, by the function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.variables import Variable

Builtin = Callable[..., Variable]


_table: dict[Any, Builtin] = {}


def builtin(*functions: Any) -> Callable[[Builtin], Builtin]:
    """Register how builtin functions run on tracked values."""

    def register(rule: Builtin) -> Builtin:
        for function in functions:
            if function in _table:
                raise ValueError(f"{function} has two rules")
            _table[function] = rule
        return rule

    return register


@functools.cache
def signature_of(rule: Builtin) -> inspect.Signature:
    """The signature of a rule, against which the traced call's arguments are bound."""
    return inspect.signature(rule)


def find_builtin(function: Any) -> Builtin | None:
    """The rule of a builtin function, if there is one."""
    try:
        return _table.get(function)
    except TypeError:
        return None
