"""Expressions of torch's environment as Python text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]  # it has no types
from torch.utils._sympy.printers import PythonPrinter


class _Printer(PythonPrinter):
    def __init__(self, places: dict[Any, str]) -> None:
        super().__init__()
        self.places = places

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return self.places[expr]

    def _print_CleanDiv(self, expr: sympy.Expr) -> str:
        return self._print_FloorDiv(expr)  # it divides without a rest

    def _print_Relational(self, expr: Any) -> str:
        return f"({self._print(expr.lhs)} {expr.rel_op} {self._print(expr.rhs)})"

    def _print_Not(self, expr: Any) -> str:
        return f"(not {self._print(expr.args[0])})"


def template(expr: sympy.Basic, symbols: Sequence[sympy.Symbol]) -> str:
    """The expression with `{0}`, `{1}`... for its symbols."""
    places = {symbol: f"{{{n}}}" for n, symbol in enumerate(symbols)}
    text: str = _Printer(places).doprint(expr)
    return text
