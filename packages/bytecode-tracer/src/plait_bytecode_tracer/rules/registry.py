"""Rules for functions that the trace carries out itself, by the function."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from torch._compile import _disable_dynamo

from plait_bytecode_tracer.values.variables import Variable

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


_named: dict[tuple[str, str], Builtin] = {}


def named_rule(module: str, name: str) -> Callable[[Builtin], Builtin]:
    """Register a rule for a function of a module that is not to be imported for it."""

    def register(rule: Builtin) -> Builtin:
        if (module, name) in _named:
            raise ValueError(f"{module}.{name} has two rules")
        _named[module, name] = rule
        return rule

    return register


def find_named(function: types.FunctionType) -> Builtin | None:
    """The rule that a function has by its name, if there is one."""
    return _named.get((function.__module__, function.__qualname__))


_wrapper_code = _disable_dynamo(lambda: None).__code__


def unwrapped(function: types.FunctionType) -> types.FunctionType:
    """What a function calls that torch wraps only for a compiler of its own."""
    while function.__code__ is _wrapper_code:
        place = function.__code__.co_freevars.index("fn")
        function = (function.__closure__ or ())[place].cell_contents
    return function


@functools.cache
def signature_of(rule: Builtin) -> inspect.Signature:
    """The signature of a rule, against which the traced call's arguments are bound."""
    return inspect.signature(rule)


@functools.cache
def _count_of(rule: Builtin) -> tuple[int, int]:
    """How many arguments a rule takes by position, at least and at most."""
    found = signature_of(rule).parameters.values()
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in found):
        return 1, 0
    named = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least = sum(p.default is p.empty for p in named)
    return least, 1 << 30 if any(p.kind is p.VAR_POSITIONAL for p in found) else len(named)


def fits(rule: Builtin, *args: Any, **kwargs: Any) -> bool:
    """Whether a rule takes these arguments."""
    least, most = _count_of(rule)
    if not kwargs and least <= len(args) <= most:
        return True
    try:
        signature_of(rule).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def takes_names(function: Any, names: Iterable[str]) -> bool:
    """Whether a function takes arguments by these names, as far as its signature tells."""
    known = _names_of(function)
    return known is None or all(name in known for name in names)


@functools.cache
def _names_of(function: Any) -> frozenset[str] | None:
    """The names of a function's parameters that are not by position only; None: any may be."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # of C, without a signature
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY)


def find_builtin(function: Any) -> Builtin | None:
    """The rule of a builtin function, if there is one."""
    try:
        return _table.get(function)
    except TypeError:
        return None
