"""Index expressions as C++."""

from __future__ import annotations

from plait_ir_lowering import IndexExpr, Quotient, Remainder, bounds


def c_index(expr: IndexExpr) -> str:
    """`expr` as a C++ expression of type int64_t, parenthesised where it is a sum."""
    pieces: list[str] = []
    for monomial, coefficient in expr.terms:
        factors = [_atom(atom) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.append(f"{coefficient}" if coefficient >= 0 else f"({coefficient})")
        pieces.append(" * ".join(factors))
    if not pieces:
        return "0"
    return pieces[0] if len(pieces) == 1 else f"({' + '.join(pieces)})"


def _atom(atom: object) -> str:
    match atom:
        case Quotient(numerator, denominator):
            return _divide(numerator, denominator, "/", "floordiv")
        case Remainder(numerator, denominator):
            return _divide(numerator, denominator, "%", "floormod")
    return str(getattr(atom, "name"))  # noqa: B009  # variables and sizes both have one


def _divide(numerator: IndexExpr, denominator: IndexExpr, operator: str, function: str) -> str:
    low = bounds(numerator)[0]
    top, bottom = c_index(numerator), c_index(denominator)
    if low is not None and low >= 0:
        return f"({top} {operator} {bottom})"
    return f"{function}({top}, {bottom})"
