"""Operators that return arguments which they have written to, though no schema says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._ops import OpOverload

LENT = "plait_lent"
"""The namespace of these operators. Whoever calls one knows that nothing else reads the argument,
and reads the result in its place."""


def returns_arguments(op: OpOverload) -> bool:
    """Whether results of an operator are its own arguments, after it has written to them."""
    return op.namespace == LENT
