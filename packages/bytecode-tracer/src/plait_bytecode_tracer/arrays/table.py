"""The functions of NumPy that are captured, by the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.values.variables import Variable

Rule = Callable[..., Variable]
"""Takes a `Context`, then what the function takes, under NumPy's names."""
FUNCTIONS: dict[Any, Rule] = {}


def captured(*functions: Any) -> Callable[[Rule], Rule]:
    """Register how a function runs on tensors."""

    def register(rule: Rule) -> Rule:
        for function in functions:
            if function in FUNCTIONS:
                raise ValueError(f"{function} has two rules")
            FUNCTIONS[function] = rule
        return rule

    return register
