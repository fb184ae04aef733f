"""Sizes of torch's environment of symbolic sizes, as index expressions.

The environment's expressions are sympy's; they are read by their attributes, so that sympy is
not imported where all sizes are known.
"""

from __future__ import annotations

from math import gcd, lcm
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from plait_ir_lowering.errors import LoweringError
from plait_ir_lowering.ir.float_sizes import ROUNDINGS, by_division
from plait_ir_lowering.ir.index import ONE, ZERO, IndexExpr, Sym, as_index, bounds

_REMAINDERS = ("Mod", "PythonMod")
LEAST_SIZE = 2
"""Symbolic sizes are at least this: 0 and 1 behave as no other, and are numbers."""


_Span: TypeAlias = tuple[int, int | None]
"""The least and the largest value; None where there is none."""


class _Known:
    """What an environment is taken to know of its symbols, and what was made of expressions.

    That stays as it was when a symbol was first met: a size that is found to be another's in the
    middle of a lowering would have two names in one graph.
    """

    __slots__ = ("found", "replaced", "spans", "symbols")

    def __init__(self) -> None:
        self.replaced: dict[Any, Any] = {}
        self.spans: dict[Any, _Span] = {}
        self.symbols: dict[Any, IndexExpr] = {}
        self.found: dict[Any, IndexExpr] = {}


_known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def settle(environment: Any) -> None:
    """Take sizes for what an environment knows of them from now on."""
    _known[environment] = _Known()


def has_learned(environment: Any) -> bool:
    """Whether it knows more than sizes are taken for: that one is another, or is larger."""
    known = _known[environment]
    return any(environment.replace(each) != was for each, was in known.replaced.items()) or any(
        _span(each, environment) != was for each, was in known.spans.items()
    )


def index_of_size(size: Any) -> IndexExpr:
    """An index expression for a `SymInt`. Raises LoweringError for what they cannot say."""
    return index_in(size.node._expr, size.node.shape_env)


def index_in(expr: Any, environment: Any) -> IndexExpr:
    """An index expression for a sympy expression of an environment.

    Which of several sizes is the largest or the least is asked of the environment where it does
    not follow from their bounds, and so is whether products with floats, rounded to integers, are
    small enough to be quotients of integers. Raises LoweringError for what index expressions cannot
    say.
    """
    known = _known.get(environment)
    if known is None:
        known = _known[environment] = _Known()
    found = known.found.get(expr)
    if found is None:
        found = known.found[expr] = _made(expr, environment, known)
    return found


def _made(expr: Any, environment: Any, known: _Known) -> IndexExpr:
    for symbol in expr.free_symbols - known.replaced.keys():
        known.replaced[symbol] = environment.replace(symbol)
    changed = {each: known.replaced[each] for each in expr.free_symbols}
    expr = expr.xreplace(changed)
    try:
        return _index_of(expr, environment, known)
    except LoweringError:
        decided = _decided(expr, environment)
        if decided == expr:
            raise
        return _index_of(decided, environment, known)


def _size(symbol: Any, environment: Any, known: _Known) -> IndexExpr:
    """A symbol, with the bounds and the step that the environment has noted conditions for."""
    found = known.symbols.get(symbol)
    if found is None:
        known.spans[symbol] = _span(symbol, environment)
        step = _step(symbol, environment)
        found = known.symbols[symbol] = Sym(symbol.name, *known.spans[symbol], step).expr
    return found


def _step(symbol: Any, environment: Any) -> int:
    """What a symbol is a multiple of by the conditions that the environment has noted, such as that
    rows begin at multiples of 16 bytes."""
    found = 1
    for guard in environment.guards:
        match guard.expr.func.__name__, guard.expr.args:
            case "Equality", (rest, zero) if zero.is_zero and rest.func.__name__ in _REMAINDERS:
                number, divisor = rest.args
                factor, left = number.as_coeff_Mul()
                if left == symbol and factor.is_Integer and divisor.is_Integer:
                    found = lcm(found, int(divisor) // gcd(int(factor), int(divisor)))
    return found


def _span(symbol: Any, environment: Any) -> _Span:
    noted = environment.var_to_range.get(symbol)
    if noted is None:
        return LEAST_SIZE, None
    least = max(LEAST_SIZE, int(noted.lower)) if noted.lower.is_Integer else LEAST_SIZE
    return least, int(noted.upper) if noted.upper.is_Integer else None


def _decided(expr: Any, environment: Any) -> Any:
    """An expression with one operand in the place of each maximum and minimum."""
    if not expr.args:
        return expr
    kind = expr.func.__name__
    if kind in ROUNDINGS:
        return by_division(expr, environment)
    operands = [_decided(each, environment) for each in expr.args]
    if kind not in ("Max", "Min"):
        return expr.func(*operands)
    found = operands[0]
    for each in operands[1:]:
        exceeds = bool(environment.evaluate_expr(each >= found))
        found = each if exceeds == (kind == "Max") else found
    return found


def _index_of(expr: Any, environment: Any, known: _Known) -> IndexExpr:
    """An index expression for a sympy expression over integers.

    Raises LoweringError for functions that index expressions do not have.
    """
    if expr.is_Integer:
        return as_index(int(expr))
    if expr.is_Symbol:
        return _size(expr, environment, known)
    operands = [_index_of(each, environment, known) for each in expr.args]
    if expr.is_Add:
        return sum(operands, ZERO)
    if expr.is_Mul:
        return _product(operands)
    match expr.func.__name__, operands:
        case "Pow", [base, exponent] if exponent.is_constant and exponent.constant > 0:
            return _product([base] * exponent.constant)
        case "FloorDiv" | "CleanDiv", [numerator, denominator] if _is_positive(denominator):
            return numerator // denominator
        case kind, [numerator, denominator] if kind in _REMAINDERS and _is_positive(denominator):
            return numerator % denominator
        case "Max", _ if (largest := _last(operands)) is not None:
            return largest
        case "Min", _ if (least := _last([-each for each in operands])) is not None:
            return -least
    raise LoweringError(f"the size {expr} has no index expression")


def _last(operands: list[IndexExpr]) -> IndexExpr | None:
    """The operand that is certainly the largest; None if none is."""
    for candidate in operands:
        if all(_is_natural(candidate - each) for each in operands):
            return candidate
    return None


def _is_natural(expr: IndexExpr) -> bool:
    low = bounds(expr)[0]
    return low is not None and low >= 0


def _product(operands: list[IndexExpr]) -> IndexExpr:
    found = ONE
    for each in operands:
        found = found * each
    return found


def _is_positive(expr: IndexExpr) -> bool:
    return _is_natural(expr - 1)
