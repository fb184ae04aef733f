"""Quotients and remainders by sizes that are known only when the program runs.

What is below what is proven by bounds that are expressions over the sizes: a variable is at most
its extent less one, so `i*n + j` is below `m*n` for `i < m` and `j < n`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from math import gcd

from plait_ir_lowering.ir.index import (
    ONE,
    ZERO,
    Atom,
    IndexExpr,
    Monomial,
    Quotient,
    Remainder,
    Sym,
    Var,
    bounds,
)


def divide_open(numerator: IndexExpr, denominator: IndexExpr) -> tuple[IndexExpr, IndexExpr]:
    """Quotient and remainder: exact for terms that contain the divisor, else kept as atoms."""
    if len(denominator.terms) != 1:
        if is_below(numerator, denominator):
            return ZERO, numerator
        return _atoms(numerator, denominator)
    factors, scale = denominator.terms[0]
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in numerator.terms:
        left = without(monomial, factors)
        if left is not None and coefficient % scale == 0:
            whole[left] = coefficient // scale
        else:
            rest[monomial] = coefficient
    quotient, remaining = IndexExpr.of(whole), IndexExpr.of(rest)
    if not remaining.terms or is_below(remaining, denominator):
        return quotient, remaining
    if is_below(remaining + denominator, denominator):
        return quotient - 1, remaining + denominator
    mirrored = -remaining - 1
    if _is_natural(mirrored):  # (-x - 1) // d is -(x // d) - 1
        above, left_over = divide_open(mirrored, denominator)
        return quotient - 1 - above, denominator - 1 - left_over
    for factor, high, low in _splits(remaining, denominator):
        if is_below(low, factor):
            (divisor, _) = divide_open(denominator, factor)
            above, left_over = high // divisor, high % divisor
            return quotient + above, left_over * factor + low
    above, left_over = _atoms(remaining, denominator)
    return quotient + above, left_over


def _atoms(numerator: IndexExpr, denominator: IndexExpr) -> tuple[IndexExpr, IndexExpr]:
    quotient = IndexExpr.of({(Quotient(numerator, denominator),): 1})
    return quotient, IndexExpr.of({(Remainder(numerator, denominator),): 1})


def without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """A product divided by another; None where it does not contain it."""
    remaining = list(monomial)
    for factor in factors:
        if factor not in remaining:
            return None
        remaining.remove(factor)
    return tuple(remaining)


def _splits(
    rest: IndexExpr, denominator: IndexExpr
) -> Iterator[tuple[IndexExpr, IndexExpr, IndexExpr]]:
    """`rest` as `factor * high + low`, for factors of the divisor, the largest first."""
    (factors, scale) = denominator.terms[0]
    for count in range(len(factors), -1, -1):
        for chosen in dict.fromkeys(combinations(factors, count)):
            inside = [(left, c) for m, c in rest.terms if (left := without(m, chosen)) is not None]
            for number in sorted({gcd(scale, c) for _, c in inside}, reverse=True):
                factor = IndexExpr.of({chosen: number})
                high = IndexExpr.of({m: c // number for m, c in inside if c % number == 0})
                if high.terms and factor is not ONE and factor is not denominator:
                    yield factor, high, rest - high * factor


@lru_cache(maxsize=65536)
def is_below(expr: IndexExpr, limit: IndexExpr) -> bool:
    """True where 0 ≤ expr < limit is certain wherever the variables have a value."""
    low, high = _extreme(expr, upper=False), _extreme(expr, upper=True)
    if low is None or high is None:
        return False
    return _is_natural(low) and _is_natural(limit - 1 - high)


def _is_natural(expr: IndexExpr) -> bool:
    least = bounds(expr)[0]
    return least is not None and least >= 0


def _extreme(expr: IndexExpr, *, upper: bool) -> IndexExpr | None:
    """A bound of `expr` over its variables, in terms of the sizes; None if none is known."""
    total = ZERO
    for monomial, coefficient in expr.terms:
        fixed = tuple(atom for atom in monomial if isinstance(atom, Sym))
        moving = [atom for atom in monomial if not isinstance(atom, Sym)]
        product = IndexExpr.of({fixed: coefficient})
        for atom in moving:
            highest = _highest(atom)
            if highest is None:
                return None
            product = product * (highest if (coefficient > 0) is upper else ZERO)
        total = total + product
    return total


def _highest(atom: Atom) -> IndexExpr | None:
    """The largest value of an atom that is never negative, in terms of the sizes."""
    match atom:
        case Var(_, extent):
            return _extreme(extent - 1, upper=True)
        case Remainder(_, denominator):
            return _extreme(denominator - 1, upper=True)
        case Quotient(numerator, denominator):
            low, high = _extreme(numerator, upper=False), _extreme(numerator, upper=True)
            if low is None or high is None or not _is_natural(low):
                return None
            return high // denominator if _is_fixed(denominator) else high
    return None


def _is_fixed(expr: IndexExpr) -> bool:
    return all(isinstance(atom, Sym) for monomial, _ in expr.terms for atom in monomial)
