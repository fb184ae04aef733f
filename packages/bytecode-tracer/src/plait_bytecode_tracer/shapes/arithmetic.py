"""Operators and functions of symbolic numbers.

What is not known here to be a pure function, or may raise, takes the numbers' values of this
call, which are then guarded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

from plait_bytecode_tracer.shapes.symbols import Symbols
from plait_bytecode_tracer.variables import Known, SequenceVariable, SymbolVariable, Variable

_NUMBERS = (int, float, bool)
_COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
_EXACT = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod),
        *(operator.neg, operator.pos, *_COMPARISONS),
    }
)
"""What torch's symbolic ints compute as Python does."""
_DIVISIONS = frozenset({operator.truediv, operator.floordiv, operator.mod, divmod})
_SHIFTS = frozenset({operator.lshift, operator.rshift})
_BITS = frozenset({operator.and_, operator.or_, operator.xor})
_PLAIN = frozenset({*_EXACT, operator.truediv, operator.pow, *_SHIFTS, *_BITS, operator.invert})
_IN_PLACE: dict[Any, Any] = {
    getattr(operator, f"i{name}"): getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift")
}
_IN_PLACE |= {operator.iand: operator.and_, operator.ior: operator.or_, operator.ixor: operator.xor}
_TEXTS = frozenset({str, repr, format, ascii})
_FINITE = frozenset({int, round, math.floor, math.ceil, math.trunc})
"""Functions that raise for infinities and NaN."""
_TOTAL = frozenset({float, bool, abs, *_TEXTS, math.isfinite, math.isnan, math.isinf})
"""Functions of one number that never raise."""
_ABOVE_ZERO = frozenset({math.log, math.log2, math.log10})
_NOT_NEGATIVE = frozenset({math.sqrt, math.isqrt, math.factorial})
_OF_INTS = frozenset({math.gcd, math.lcm})
METHODS = frozenset({int.bit_length, int.bit_count, float.is_integer, int.__index__})
"""Methods of numbers that never raise."""
FUNCTIONS = frozenset(
    {*_FINITE, *_TOTAL, *_ABOVE_ZERO, *_NOT_NEGATIVE, *_OF_INTS, *METHODS, divmod, pow}
)


def is_symbolic(values: Iterable[Variable]) -> bool:
    """Whether one of the values is a symbolic number."""
    return any(isinstance(value, SymbolVariable) for value in values)


def concrete(value: Variable) -> Variable:
    """The value of a symbolic number in this call, guarded; all else as it is."""
    return Known(value.owner.specialise(value)) if isinstance(value, SymbolVariable) else value


def apply_symbolic(function: Callable[..., Any], args: list[Variable]) -> Variable | None:
    """An operator of numbers; None where it is not one that is known here."""
    plain = _IN_PLACE.get(function, function)
    if plain is operator.not_ and isinstance(args[0], SymbolVariable):
        return Known(not args[0].owner.decide(args[0]))
    if plain not in _PLAIN or not all(_is_number(arg) for arg in args):
        return None
    symbols = _owner(args)
    if not _is_defined(symbols, plain, args):
        return None
    return symbols.derive(plain, args, _symbolic_result(symbols, plain, args))


def call_symbolic(
    function: Callable[..., Any], args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """A pure function of numbers; None where it is not one that is known here."""
    if function not in FUNCTIONS or kwargs or not args:
        return None
    if function in _TEXTS and all(_is_text(arg) for arg in args[1:]):
        return _text(function, args)
    if not all(_is_number(arg) for arg in args):
        return None
    symbols = _owner(args)
    first = args[0]
    if function is pow and len(args) == 2:
        return apply_symbolic(operator.pow, args)
    if function is divmod and len(args) == 2:
        parts = [apply_symbolic(each, args) for each in (operator.floordiv, operator.mod)]
        found = [part for part in parts if part is not None]
        return SequenceVariable(list(found), tuple) if len(found) == 2 else None
    if function in (int, operator.index, int.__index__) and _kind(first) is int:
        return first
    if function is float and _kind(first) is float:
        return first
    if not _has_hints(args):
        return _without_hints(symbols, function, args)
    if function in _FINITE and _kind(first) is float and not _is_finite(symbols, first):
        return None
    if function in _ABOVE_ZERO and not _decides(symbols, operator.gt, first, 0):
        return None
    if function in _NOT_NEGATIVE and not _decides(symbols, operator.ge, first, 0):
        return None
    if function in METHODS and _kind(first) is not (float if function is float.is_integer else int):
        return None
    if function in (*_OF_INTS, math.isqrt, math.factorial) and any(
        _kind(arg) is not int for arg in args
    ):
        return None
    if len(args) > (2 if function in (round, *_OF_INTS) else 1):
        return None
    if function is math.factorial or (function is round and is_symbolic(args[1:])):
        return None
    return symbols.derive(function, args)


def _text(function: Any, args: list[Variable]) -> Variable | None:
    """A number as text; None for one that depends on data, or a format that may fail."""
    form = args[1].value if len(args) == 2 and isinstance(args[1], Known) else ""
    if len(args) > 2 or "c" in form or not _has_hints(args):
        return None
    try:
        return _owner(args).derive(function, args)
    except (ValueError, TypeError):
        return None


def extreme(function: Any, args: list[Variable]) -> Variable | None:
    """`min` or `max` of ints, of which one at least is symbolic; None where it is not that."""
    if any(_kind(arg) is not int or not _is_number(arg) for arg in args):
        return None
    symbols = _owner(args)
    found = args[0]
    for other in args[1:]:
        combine: Any = torch.sym_min if function is min else torch.sym_max
        sym: Any = combine(_sym(symbols, found), _sym(symbols, other))
        found = symbols.derive(function, [found, other], sym)
    return found


def _owner(args: list[Variable]) -> Symbols:
    return next(arg.owner for arg in args if isinstance(arg, SymbolVariable))


def _is_number(value: Variable) -> bool:
    return _kind(value) in (*_NUMBERS, str)


def _is_text(value: Variable) -> bool:
    return isinstance(value, Known) and type(value.value) is str


def _kind(value: Variable) -> type | None:
    if isinstance(value, SymbolVariable):
        return value.kind
    return type(value.value) if isinstance(value, Known) else None


def _has_hints(args: Iterable[Variable]) -> bool:
    return not any(isinstance(arg, SymbolVariable) and arg.hint is None for arg in args)


def _sym(symbols: Symbols, value: Variable) -> Any:
    if isinstance(value, SymbolVariable):
        return symbols.symbolic(value)
    assert isinstance(value, Known)
    return value.value


def _symbolic_result(symbols: Symbols, function: Any, args: list[Variable]) -> Any:
    """What torch's environment knows of the result: of exact arithmetic on ints."""
    if not _has_hints(args):
        if function in (*_EXACT, operator.truediv) and not any(_kind(a) is str for a in args):
            return function(*(_sym(symbols, arg) for arg in args))
        return None
    if function in _EXACT and all(_kind(arg) is int for arg in args):
        return function(*(_sym(symbols, arg) for arg in args))
    return None


def _is_defined(symbols: Symbols, function: Any, args: list[Variable]) -> bool:
    """Whether the operator gives a value of one type, for all values that guards allow."""
    kinds = [_kind(arg) for arg in args]
    if str in kinds:
        if not _has_hints(args):
            return False
        both = kinds == [str, str]
        return both and function in (operator.add, *_COMPARISONS)
    if function in _DIVISIONS:
        return _decides(symbols, operator.ne, args[1], 0)
    if function in _SHIFTS:
        small = kinds == [int, int] and _decides(symbols, operator.ge, args[1], 0)
        return small and _decides(symbols, operator.le, args[1], 64)
    if function is operator.pow:
        if kinds == [int, int]:
            small = _decides(symbols, operator.ge, args[1], 0)
            return small and _decides(symbols, operator.le, args[1], 64)
        return kinds[0] is not bool and _is_power(symbols, args)
    return not (function in (*_BITS, operator.invert) and float in kinds)


def _is_power(symbols: Symbols, args: list[Variable]) -> bool:
    """Whether a power of floats is a float: of a base above zero, that does not overflow."""
    positive = _decides(symbols, operator.gt, args[0], 0)
    if not positive or not _has_hints(args):
        return False
    return _decides(symbols, operator.le, args[0], 2**20) and all(
        _decides(symbols, compare, args[1], bound)
        for compare, bound in ((operator.le, 40), (operator.ge, -40))
    )


def _decides(symbols: Symbols, compare: Any, value: Variable, bound: int) -> bool:
    """Whether a comparison holds in this call, and so in others."""
    if isinstance(value, Known):
        return bool(compare(value.value, bound))
    assert isinstance(value, SymbolVariable)
    if value.kind is bool:
        return False
    found = apply_symbolic(compare, [value, Known(bound)])
    if isinstance(found, SymbolVariable):
        return symbols.decide(found)
    return isinstance(found, Known) and bool(found.value)


def _is_finite(symbols: Symbols, value: Variable) -> bool:
    if isinstance(value, Known):
        return math.isfinite(value.value)
    found = symbols.derive(math.isfinite, [value])
    return isinstance(found, SymbolVariable) and symbols.decide(found)


def _without_hints(symbols: Symbols, function: Any, args: list[Variable]) -> Variable | None:
    """A function of a number that depends on data."""
    sym = _sym(symbols, args[0])
    torch_function: dict[Any, Any] = {
        float: torch.sym_float,
        int: torch.sym_int,
        abs: abs,
        math.ceil: math.ceil,
        math.floor: math.floor,
    }
    chosen = torch_function.get(function)
    if chosen is None or len(args) != 1 or _kind(args[0]) is bool:
        return None
    if _kind(args[0]) is float and function is not float:
        return None  # it may not be finite
    return symbols.derive(function, args, chosen(sym))


def is_true(value: SymbolVariable) -> bool:
    """`bool(value)`, guarded. Breaks where it depends on data."""
    return value.owner.decide(value)


__all__ = [
    "FUNCTIONS",
    "apply_symbolic",
    "call_symbolic",
    "concrete",
    "extreme",
    "is_symbolic",
    "is_true",
]
