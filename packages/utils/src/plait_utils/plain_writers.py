"""Operators that do nothing but write to their arguments, what these hold decides what.

One that says that it draws random numbers does more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._ops import OpOverload

NAMESPACE = "plait_kernels"
"""Of operators that launch kernels of a program's."""


def only_writes(func: OpOverload) -> bool:
    """Whether an operator may be called less or more often, or at another time, with copies."""
    import torch

    return func.namespace == NAMESPACE and torch.Tag.nondeterministic_seeded not in func.tags
