"""Sizes in bytes and points, as numbers for cost estimates."""

from __future__ import annotations

from plait_ir_lowering import Buffer, IndexExpr, Sym, atoms, evaluate

SYMBOL_ESTIMATE = 64
"""What a size that is not known yet is taken to be in cost estimates."""


def estimate(expr: IndexExpr) -> int:
    """The value of `expr`, with a guess for each size that is not known yet."""
    if expr.is_constant:
        return expr.as_int()
    guesses = {
        atom.name: max(SYMBOL_ESTIMATE, atom.lower) for atom in atoms(expr) if isinstance(atom, Sym)
    }
    return evaluate(expr, guesses)


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of the elements of `buffer`."""
    return estimate(buffer.layout.numel) * buffer.dtype.itemsize
