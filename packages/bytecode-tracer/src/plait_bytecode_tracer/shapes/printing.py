"""Expressions of torch's environment as Python text."""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]  # it has no types
import torch
from torch.utils._sympy.printers import PythonPrinter

from plait_bytecode_tracer.shapes.expressions import bare


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
        return f"(not ({self._print(expr.args[0])}))"

    def _print_And(self, expr: Any) -> str:
        return f"({' and '.join(map(self._print, expr.args))})"

    def _print_Or(self, expr: Any) -> str:
        return f"({' or '.join(map(self._print, expr.args))})"


MODULES = types.SimpleNamespace(math=math, torch=torch)
"""What `{f}` names in a template: the modules whose functions it calls."""


def bracketed(text: str) -> str:
    """A text as an operand."""
    return text if bare(text) != text else f"({text})"


def template(expr: sympy.Basic, symbols: Sequence[sympy.Symbol]) -> str:
    """The expression with `{0}`, `{1}`... for its symbols."""
    places = {symbol: f"{{{n}}}" for n, symbol in enumerate(symbols)}
    text: str = _Printer(places).doprint(expr)
    return text.replace("math.", "{f}.math.").replace("torch.", "{f}.torch.")
