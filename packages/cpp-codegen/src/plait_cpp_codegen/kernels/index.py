"""Index expressions as C++.

In kernels, numbers that come from sizes are marked, so that kernels which differ in nothing else
can be one function (`plait_cpp_codegen.kernels.sizes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from plait_cpp_codegen.kernels.sizes import size
from plait_ir_lowering import IndexExpr, Quotient, Remainder, bounds

_Spell: TypeAlias = Callable[[int], str]


def c_index(expr: IndexExpr) -> str:
    """`expr` as a C++ expression of type int64_t, parenthesised where it is a sum."""
    return _spelled(expr, str)


def kernel_index(expr: IndexExpr) -> str:
    """The same within a kernel: its numbers are marked as sizes."""
    return _spelled(expr, size)


def _spelled(expr: IndexExpr, spell: _Spell) -> str:
    pieces: list[str] = []
    for monomial, coefficient in expr.terms:
        factors = [_atom(atom, spell) for atom in monomial]
        if coefficient != 1 or not factors:
            text = spell(coefficient)
            factors.append(text if coefficient >= 0 else f"({text})")
        pieces.append(" * ".join(factors))
    if not pieces:
        return "0"
    return pieces[0] if len(pieces) == 1 else f"({' + '.join(pieces)})"


def _atom(atom: object, spell: _Spell) -> str:
    match atom:
        case Quotient(numerator, denominator):
            return _divide(numerator, denominator, "/", "floordiv", spell)
        case Remainder(numerator, denominator):
            return _divide(numerator, denominator, "%", "floormod", spell)
    return str(getattr(atom, "name"))  # noqa: B009  # variables and sizes both have one


def _divide(
    numerator: IndexExpr, denominator: IndexExpr, operator: str, function: str, spell: _Spell
) -> str:
    low = bounds(numerator)[0]
    # What is divided by stays a constant: compilers make a multiplication of it.
    top, bottom = _spelled(numerator, spell), c_index(denominator)
    bottom = bottom if denominator.is_constant else f"({bottom})"
    if low is not None and low >= 0:
        return f"({top} {operator} {bottom})"
    return f"{function}({top}, {bottom})"
