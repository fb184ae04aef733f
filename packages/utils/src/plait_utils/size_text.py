"""Expressions of torch's environment of symbolic sizes, as Python text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]  # it has no types
from torch.utils._sympy.printers import PythonPrinter


def python_of(expr: Any, places: Mapping[Any, str]) -> str:
    """The Python of a sympy expression or a number, `places` being that of its symbols.

    It calls functions of the modules `math` and `torch`; what has no Python is called by its name.
    """
    text: str = _Printer(places).doprint(expr)
    return text


class _Printer(PythonPrinter):
    def __init__(self, places: Mapping[Any, str]) -> None:
        super().__init__()
        self.places = places

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return self.places[expr]

    def _print_CleanDiv(self, expr: sympy.Expr) -> str:
        return self._print_FloorDiv(expr)  # it divides without a rest

    def _print_Relational(self, expr: Any) -> str:
        return f"({self._print(expr.lhs)} {expr.rel_op} {self._print(expr.rhs)})"

    def _print_Not(self, expr: Any) -> str:
        return f"(not ({self._print(expr.args[0])}))"

    def _print_And(self, expr: Any) -> str:
        return f"({' and '.join(map(self._print, expr.args))})"

    def _print_Or(self, expr: Any) -> str:
        return f"({' or '.join(map(self._print, expr.args))})"
