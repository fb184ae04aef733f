"""Operators and functions of symbolic numbers.

What is not known here to be a pure function, or may raise, takes the numbers' values of this
call, which are then guarded.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from plait_bytecode_tracer.shapes.domains import (
    DOMAINS,
    Condition,
    Domain,
    opposite,
    power_conditions,
)
from plait_bytecode_tracer.shapes.symbols import Symbols
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, SymbolVariable, Variable
from plait_utils.open_functions import open_call

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
_MOST_OPERATIONS = 24
"""In how many operations an int is computed whose bits are taken for arithmetic: it has several of
these for each of Python's."""
_MOST_FACTORS = 4
"""The greatest power of an int that depends on data that is taken for a product."""
_OF_DATA = frozenset(
    {
        *(math.sqrt, math.log, math.log2, math.log10, math.log1p, math.exp, math.expm1),
        *(math.sin, math.cos, math.tanh, math.atan, math.erf),
    }
)
"""Functions that Python calls while the graph runs, with numbers that the run gives."""
_BITS = frozenset({operator.and_, operator.or_, operator.xor})
_PLAIN = frozenset({*_EXACT, operator.truediv, operator.pow, *_SHIFTS, *_BITS, operator.invert})
_IN_PLACE: dict[Any, Any] = {
    getattr(operator, f"i{name}"): getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift")
}
_IN_PLACE |= {operator.iand: operator.and_, operator.ior: operator.or_, operator.ixor: operator.xor}
_SIGNS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
SLOTS: dict[Any, Any] = {
    getattr(kind, f"__{name}__"): (kind, getattr(operator, name))
    for kind in (int, float)
    for name in (*_SIGNS, "lt", "le", "eq", "ne", "gt", "ge", "neg", "pos", "abs")
}
"""What the methods behind operators compute, by the class of the number that they are of."""
TEXTS = (str, bytes)
"""Classes of texts, which differ from call to call as numbers do."""
_TEXTS = frozenset({str, repr, format, ascii})
METHODS = frozenset({int.bit_length, int.bit_count, float.is_integer, int.__index__})
"""Methods of numbers that never raise."""
_NUMBERS_THEMSELVES: dict[Any, type] = {
    int.conjugate: int,
    int.__int__: int,
    int.__trunc__: int,
    float.conjugate: float,
    float.__float__: float,
}
"""Methods that give the number itself, and the class that it then has."""
FUNCTIONS = frozenset(
    {*DOMAINS, *_TEXTS, *METHODS, *SLOTS, *_NUMBERS_THEMSELVES, divmod, pow, math.pow}
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
    if any(_kind(arg) in TEXTS for arg in args):
        return _owner(args).derive(bool, args) if function is bool and len(args) == 1 else None
    symbols = _owner(args)
    first = args[0]
    if function in SLOTS:
        kind, plain = SLOTS[function]
        return _slot(kind, plain, args)
    if function in _NUMBERS_THEMSELVES:
        return first if _kind(first) is _NUMBERS_THEMSELVES[function] else None
    if function in (pow, math.pow) and len(args) == 2:
        return _power(symbols, function, args)
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
    if function in METHODS:
        needed = float if function is float.is_integer else int
        return symbols.derive(function, args) if _kind(first) is needed else None
    domain = DOMAINS.get(function)
    if domain is None or not _lies_in(symbols, domain, args):
        return None
    if function is round and is_symbolic(args[1:]):
        return None
    return symbols.derive(function, args)


def _slot(kind: type, plain: Any, args: list[Variable]) -> Variable | None:
    """`int.__add__(a, b)` and its like; None where it may be NotImplemented."""
    taken = (int,) if kind is int else (float, int)
    if _kind(args[0]) is not kind or any(_kind(arg) not in taken for arg in args[1:]):
        return None
    if plain is operator.abs:
        return call_symbolic(abs, args, {})
    return apply_symbolic(plain, args) if len(args) <= 2 else None


def _lies_in(symbols: Symbols, domain: Domain, args: list[Variable]) -> bool:
    """Whether a function is defined for the arguments, for all that guards allow."""
    if not domain.least <= len(args) <= domain.most:
        return False
    if domain.is_of_ints and any(_kind(arg) is not int for arg in args):
        return False
    if domain.is_finite and not all(_is_finite(symbols, a) for a in args if _kind(a) is float):
        return False
    return _hold(symbols, domain.conditions, args)


def _hold(symbols: Symbols, conditions: Iterable[Condition], args: list[Variable]) -> bool:
    """Whether the conditions hold in this call, and so in others."""
    return all(
        _decides(symbols, compare, args[place], bound)
        for place, compare, bound in conditions
        if place < len(args)
    )


def _power(symbols: Symbols, function: Any, args: list[Variable]) -> Variable | None:
    """`pow` of two numbers, or `math.pow`, which takes them as floats."""
    if function is pow:
        return apply_symbolic(operator.pow, args)
    if not _has_hints(args):
        return None
    floats = [call_symbolic(float, [arg], {}) if is_symbolic([arg]) else arg for arg in args]
    given = [arg for arg in floats if arg is not None]
    if len(given) == 2 and _is_power(symbols, given):
        return symbols.derive(function, args)
    return None


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
    """`min` or `max` of ints, of which one at least is symbolic; None where it is not that.

    Floats that depend on data are compared by the graph.
    """
    kinds = {_kind(arg) for arg in args}
    if kinds != {int} and (kinds != {float} or _has_hints(args)):
        return None
    symbols = _owner(args)
    found = args[0]
    for other in args[1:]:
        combine: Any = torch.sym_min if function is min else torch.sym_max
        sym: Any = combine(_sym(symbols, found), _sym(symbols, other))
        found = symbols.derive(function, [found, other], sym)
    return found


def product(args: list[Variable]) -> Variable | None:
    """The product of ints, of which one at least is symbolic; None where it is not that."""
    if not is_symbolic(args) or any(_kind(arg) is not int for arg in args):
        return None
    found = args[0]
    for other in args[1:]:
        both = isinstance(found, Known) and isinstance(other, Known)
        made = (
            Known(_known(found) * _known(other))
            if both
            else apply_symbolic(operator.mul, [found, other])
        )
        if made is None:
            return None
        found = made
    return found


def sequence_text(items: list[Variable], kind: type) -> Variable | None:
    """`repr` of a tuple or list of ints, one at least symbolic; None where it is not that."""
    if kind not in _BRACKETS or not is_symbolic(items) or any(_kind(i) is not int for i in items):
        return None
    opening, closing = _BRACKETS[kind]
    text: Variable = Known(opening)
    for place, item in enumerate(items):
        word = _text(repr, [item]) if is_symbolic([item]) else Known(repr(_known(item)))
        parts = [Known(", "), word] if place else [word]
        for part in parts:
            joined = None if part is None else _joined(text, part)
            if joined is None:
                return None
            text = joined
    return _joined(text, Known("," + closing if kind is tuple and len(items) == 1 else closing))


_BRACKETS: dict[type, tuple[str, str]] = {tuple: ("(", ")"), list: ("[", "]")}


def _joined(one: Variable, other: Variable) -> Variable | None:
    if isinstance(one, Known) and isinstance(other, Known):
        return Known(one.value + other.value)
    return apply_symbolic(operator.add, [one, other])


def _known(value: Variable) -> Any:
    assert isinstance(value, Known)
    return value.value


def _owner(args: list[Variable]) -> Symbols:
    return next(arg.owner for arg in args if isinstance(arg, SymbolVariable))


def _is_number(value: Variable) -> bool:
    return _kind(value) in (*_NUMBERS, *TEXTS)


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
    if function in (*_SHIFTS, *_BITS, operator.invert):
        return _bits(symbols, function, args)
    if not _has_hints(args):
        if function is operator.pow:
            return _power_of_data(symbols, args)
        if function in (*_EXACT, operator.truediv) and not any(_kind(a) in TEXTS for a in args):
            return function(*(_sym(symbols, arg) for arg in args))
        return None
    if function in _EXACT and all(_kind(arg) is int for arg in args):
        return function(*(_sym(symbols, arg) for arg in args))
    return None


def _bits(symbols: Symbols, function: Any, args: list[Variable]) -> Any:
    """What torch's environment knows of an operator on bits; None where that would be too much."""
    if any(_kind(arg) is not int for arg in args):
        return None
    numbers = [_sym(symbols, arg) for arg in args]
    if sum(_count(number) for number in numbers) > _MOST_OPERATIONS:
        return None
    found = open_call("call_function", function, numbers, {})
    return None if found is NotImplemented else found


def _count(number: Any) -> int:
    """In how many operations a number is computed."""
    return int(number.node.expr.count_ops()) if isinstance(number, torch.SymInt) else 0


def _power_of_data(symbols: Symbols, args: list[Variable]) -> Any:
    """A power as torch's environment knows it: a small one of an int, else some float."""
    base, exponent = args
    if _kind(base) is float or _kind(exponent) is float:
        return symbols.unknown_float()
    count = exponent.value if isinstance(exponent, Known) else _MOST_FACTORS + 1
    return math.prod([_sym(symbols, base)] * count) if count <= _MOST_FACTORS else None


def _is_defined(symbols: Symbols, function: Any, args: list[Variable]) -> bool:
    """Whether the operator gives a value of one type, for all values that guards allow."""
    kinds = [_kind(arg) for arg in args]
    if any(kind in TEXTS for kind in kinds):
        if not _has_hints(args):
            return False
        both = kinds in ([str, str], [bytes, bytes])
        return both and function in (operator.add, *_COMPARISONS)
    if function in _DIVISIONS:
        return _decides(symbols, operator.ne, args[1], 0)
    if function in _SHIFTS:
        small = kinds == [int, int] and _decides(symbols, operator.ge, args[1], 0)
        return small and _decides(symbols, operator.le, args[1], 64)
    if function is operator.pow:
        if kinds == [int, int] and _decides(symbols, operator.ge, args[1], 0):
            return _decides(symbols, operator.le, args[1], 64)
        return kinds[0] is not bool and _is_power(symbols, args)
    return not (function in (*_BITS, operator.invert) and float in kinds)


def _is_power(symbols: Symbols, args: list[Variable]) -> bool:
    """Whether a power is a float for all numbers that guards allow, and does not overflow."""
    if not _has_hints(args):
        return _is_power_of_data(symbols, args)
    base, exponent = (arg.value if isinstance(arg, Known) else None for arg in args)
    is_float = _kind(args[1]) is float and not (exponent is not None and exponent.is_integer())
    if base is None and exponent is None:
        return _is_power_of_unknowns(symbols, args, is_float=is_float)
    conditions = power_conditions(base, exponent, is_float=is_float)
    if conditions is None:
        return False
    if base is None and not is_float and not _decides(symbols, operator.ge, args[0], 0):
        conditions = opposite(conditions)
    return _hold(symbols, conditions, args)


def _is_power_of_data(symbols: Symbols, args: list[Variable]) -> bool:
    """The same where the graph's run gives a number, which may overflow then."""
    base, exponent = args
    if isinstance(base, Known):
        is_base = type(base.value) is float and base.value > 0
        return is_base and _kind(exponent) in (int, float)
    is_exponent = isinstance(exponent, Known) and type(exponent.value) is float
    return is_exponent and _decides(symbols, operator.gt, base, 0)


def _is_power_of_unknowns(symbols: Symbols, args: list[Variable], *, is_float: bool) -> bool:
    if _decides(symbols, operator.gt, args[0], 0):
        if _decides(symbols, operator.le, args[0], 1) and _decides(
            symbols, operator.ge, args[1], 0
        ):
            return True
        low = 2.0**-20
    elif is_float:
        return False
    else:
        low = -(2.0**20)
        if not _decides(symbols, operator.le, args[0], -(2.0**-20)):
            return False
    bounds: list[Condition] = [(0, operator.ge, low), (0, operator.le, 2.0**20)]
    return _hold(symbols, [*bounds, (1, operator.le, 40), (1, operator.ge, -40)], args)


def _decides(symbols: Symbols, compare: Any, value: Variable, bound: int | float) -> bool:
    """Whether a comparison holds in this call, and so in others."""
    if isinstance(value, Known):
        return bool(compare(value.value, bound))
    assert isinstance(value, SymbolVariable)
    if value.kind is bool:
        return False
    found = apply_symbolic(compare, [value, Known(bound)])
    if isinstance(found, SymbolVariable):
        return _is_checked(symbols, found) or symbols.decide(found)
    return isinstance(found, Known) and bool(found.value)


def _is_checked(symbols: Symbols, condition: SymbolVariable) -> bool:
    """Whether the graph checks what is needed of a number that depends on data."""
    from plait_bytecode_tracer.graph.checks import check_number_truth

    return condition.hint is None and check_number_truth(symbols.state, condition, True)


def assured(compare: Any, value: Variable, bound: int | float) -> bool:
    """Whether a comparison of a number holds in this call, and so in others."""
    if isinstance(value, SymbolVariable):
        return _decides(value.owner, compare, value, bound)
    return bool(compare(_known(value), bound))


def _is_finite(symbols: Symbols, value: Variable) -> bool:
    if isinstance(value, Known):
        return math.isfinite(value.value)
    found = symbols.derive(math.isfinite, [value])
    return isinstance(found, SymbolVariable) and symbols.decide(found)


def _without_hints(symbols: Symbols, function: Any, args: list[Variable]) -> Variable | None:
    """A function of a number that depends on data."""
    if function in _OF_DATA and len(args) == 1 and _kind(args[0]) is int:
        if not _lies_in(symbols, DOMAINS[function], args):
            return None
        return symbols.derive(function, args, symbols.unknown_float())
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
        return None if function is abs else _rounded(symbols, function, args)
    return symbols.derive(function, args, chosen(sym))


def _rounded(symbols: Symbols, function: Any, args: list[Variable]) -> Variable | None:
    """A float that depends on data as an int; None where the error of one that is not finite could
    not come in its place."""
    from plait_bytecode_tracer.frames.handlers import sees_errors
    from plait_bytecode_tracer.graph.checks import can_check, note_check

    state = symbols.state
    if not state.policy.data_sizes or not can_check(state):
        return None
    if any(map(sees_errors, state.frames.running)):
        return None
    note_check(state)
    return symbols.derive(function, args, symbols.environment.create_unbacked_symint())


def as_length(value: SymbolVariable) -> SymbolVariable | None:
    """A number that an object's class gives as its length, if it is one in all calls."""
    is_one = value.kind is int and value.hint is not None
    limits = ((operator.ge, 0), (operator.le, sys.maxsize))
    if is_one and all(_decides(value.owner, compare, value, limit) for compare, limit in limits):
        return value
    return None


def is_true(value: SymbolVariable) -> bool:
    """`bool(value)`, guarded. Breaks where it depends on data."""
    return value.owner.decide(value)


__all__ = [
    "FUNCTIONS",
    "apply_symbolic",
    "as_length",
    "call_symbolic",
    "concrete",
    "extreme",
    "is_symbolic",
    "is_true",
    "product",
    "sequence_text",
]
