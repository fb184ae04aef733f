"""What is asked of index expressions: what they depend on and by how much, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from plait_ir_lowering.ir.index import (
    ONE,
    ZERO,
    Atom,
    IndexExpr,
    Quotient,
    Remainder,
    Var,
    as_index,
)


def substitute(expr: IndexExpr, values: Mapping[Atom, IndexExpr]) -> IndexExpr:
    """`expr` with variables and sizes replaced, simplified again."""
    return _substitute(expr, values, {})


def _substitute(
    expr: IndexExpr, values: Mapping[Atom, IndexExpr], memo: dict[Atom, IndexExpr]
) -> IndexExpr:
    total = ZERO
    for monomial, coefficient in expr.terms:
        product = as_index(coefficient)
        for atom in monomial:
            if atom not in memo:
                memo[atom] = _substitute_atom(atom, values, memo)
            product = product * memo[atom]
        total = total + product
    return total


def _substitute_atom(
    atom: Atom, values: Mapping[Atom, IndexExpr], memo: dict[Atom, IndexExpr]
) -> IndexExpr:
    if atom in values:
        return values[atom]
    match atom:
        case Quotient(numerator, denominator):
            return _substitute(numerator, values, memo) // _substitute(denominator, values, memo)
        case Remainder(numerator, denominator):
            return _substitute(numerator, values, memo) % _substitute(denominator, values, memo)
    return IndexExpr.of({(atom,): 1})


@lru_cache(maxsize=65536)
def atoms(expr: IndexExpr) -> frozenset[Atom]:
    """The variables and sizes that `expr` depends on, those inside `//` and `%` included."""
    found: set[Atom] = set()
    for monomial, _ in expr.terms:
        for atom in monomial:
            if isinstance(atom, Quotient | Remainder):
                found |= atoms(atom.numerator) | atoms(atom.denominator)
            else:
                found.add(atom)
    return frozenset(found)


def stride_of(expr: IndexExpr, var: Var) -> IndexExpr | None:
    """By how much `expr` grows when `var` grows by one; None where that is not constant."""
    stride = ZERO
    for monomial, coefficient in expr.terms:
        count = monomial.count(var)
        if count == 0:
            if any(isinstance(a, Quotient | Remainder) and var in _inside(a) for a in monomial):
                return None
            continue
        others = tuple(atom for atom in monomial if atom is not var)
        inside = any(isinstance(a, Quotient | Remainder) and var in _inside(a) for a in others)
        if count > 1 or inside:
            return None
        stride = stride + IndexExpr.of({others: coefficient})
    return stride


def _inside(atom: Quotient | Remainder) -> frozenset[Atom]:
    return atoms(atom.numerator) | atoms(atom.denominator)


def evaluate(expr: IndexExpr, values: Mapping[str, int]) -> int:
    """The value of `expr`, given each variable's and size's value by name."""
    total = 0
    for monomial, coefficient in expr.terms:
        product = coefficient
        for atom in monomial:
            product *= _evaluate_atom(atom, values)
        total += product
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    match atom:
        case Quotient(numerator, denominator):
            return evaluate(numerator, values) // evaluate(denominator, values)
        case Remainder(numerator, denominator):
            return evaluate(numerator, values) % evaluate(denominator, values)
    return values[atom.text]


def product(values: Iterable[IndexExpr]) -> IndexExpr:
    """The product of `values`; 1 for none."""
    result = ONE
    for value in values:
        result = result * value
    return result
