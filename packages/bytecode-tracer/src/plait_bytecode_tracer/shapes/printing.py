"""Expressions of torch's environment as Python text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy  # type: ignore[import-untyped]  # it has no types
import torch

from plait_bytecode_tracer.shapes.expressions import bare
from plait_utils.size_text import python_of


class _Modules:
    math = math
    torch = torch


MODULES = _Modules()
"""What `{f}` names in a template: the modules whose functions it calls."""


def bracketed(text: str) -> str:
    """A text as an operand."""
    return text if bare(text) != text else f"({text})"


def template(expr: sympy.Basic, symbols: Sequence[sympy.Symbol]) -> str:
    """The expression with `{0}`, `{1}`... for its symbols."""
    places = {symbol: f"{{{n}}}" for n, symbol in enumerate(symbols)}
    text = python_of(expr, places)
    return text.replace("math.", "{f}.math.").replace("torch.", "{f}.torch.")
