"""Scales that blocks of a product's terms have in common, with which the block's sum is multiplied.

A factor like `mul(to(p0[i0, r0*128 + r1], f32), p1[i0, r0])` is not what tensor cores multiply; but
what 128 terms give is multiplied by the scale that these share, as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

from plait_ir_lowering import (
    DType,
    IndexExpr,
    IndexValue,
    Load,
    Op,
    Quotient,
    Value,
    Var,
    atoms,
    post_order,
)
from plait_triton_codegen.kernels.space import flat_variable, moved_value

_LEAST = 32
"""Terms that have the same scale are a multiple of so many: fewer are no block for tensor cores."""


def without_scale(factor: Value, inner: Sequence[Var]) -> tuple[Value, Value | None]:
    """A factor, and what it is scaled by, the same for blocks of terms; None where it is by
    nothing like that."""
    if not (isinstance(factor, Op) and factor.name == "mul" and factor.dtype is DType.f32):
        return factor, None
    for value, scale in (factor.args, factor.args[::-1]):
        if isinstance(scale, Load) and scaled_terms([scale], inner):
            return value, scale
    return factor, None


def scaled_terms(scales: Iterable[Value], inner: Sequence[Var]) -> int:
    """How many neighbouring terms have the same scales, at multiples of that; 0 where these differ
    from one to the next, or there are none."""
    found = 0
    terms, places = flat_variable("k", inner)
    for scale in scales:
        for expr in _exprs(moved_value(scale, places, {})):
            parts = [IndexExpr(((monomial, 1),)) for monomial, _ in expr.terms if monomial]
            for part in parts:
                if terms in atoms(part):
                    found = gcd(found, _alike(part, terms))
    return found if found % _LEAST == 0 else 0


def _exprs(value: Value) -> Iterable[IndexExpr]:
    for part in post_order([value]):
        if isinstance(part, IndexValue):
            yield part.expr
        elif isinstance(part, Load):
            yield from (at for at in part.index if isinstance(at, IndexExpr))


def _alike(part: IndexExpr, terms: Var) -> int:
    """Of a multiple of `terms // n`, n; else 1."""
    ((monomial, _),) = part.terms
    for atom in monomial:
        if isinstance(atom, Quotient) and atom.numerator is terms.expr:
            rest = [other for other in monomial if other is not atom]
            is_plain = not any(terms in atoms(IndexExpr((((other,), 1),))) for other in rest)
            return atom.denominator.as_int() if is_plain and atom.denominator.is_constant else 1
    return 1
