"""Contexts of checkpoints that choose what is saved: which of them a graph may hold.

A policy decides by the operator what is kept and what is computed again, which changes no value. It
is called as the program gives it, where the graph runs and where it is compiled: so it must only
look at what it is given and at what it names.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

_QUIET = frozenset(
    {
        *("RESUME", "CACHE", "EXTENDED_ARG", "NOP", "COPY_FREE_VARS", "MAKE_CELL", "NOT_TAKEN"),
        *("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_GLOBAL"),
        *("LOAD_DEREF", "LOAD_ATTR", "RETURN_VALUE", "RETURN_CONST", "POP_TOP", "COPY", "SWAP"),
        *("COMPARE_OP", "CONTAINS_OP", "IS_OP", "TO_BOOL", "UNARY_NOT", "BUILD_TUPLE"),
        *("STORE_FAST", "STORE_FAST_LOAD_FAST", "JUMP_FORWARD"),
    }
)
"""Instructions that do nothing but look."""
_BRANCHES = ("POP_JUMP_", "JUMP_IF_")


class Contexts(torch.nn.Module):
    """What makes the contexts of a checkpoint, in a graph."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make


def contexts_of(policy: Any) -> Any:
    """What a checkpoint is given for a policy or a list of operators; None: that may do more."""
    if isinstance(policy, list):
        listed = [op for op in policy if isinstance(op, torch._ops.OpOverload)]
        if len(listed) != len(policy):
            return None
        return functools.partial(create_selective_checkpoint_contexts, listed)
    if isinstance(policy, types.FunctionType) and _only_looks(policy.__code__):
        return functools.partial(create_selective_checkpoint_contexts, policy)
    return None


def _only_looks(code: types.CodeType) -> bool:
    """Whether code calls nothing, and writes to nothing but its own variables."""
    names = [instruction.opname for instruction in dis.get_instructions(code)]
    return all(name in _QUIET or name.startswith(_BRANCHES) for name in names)
