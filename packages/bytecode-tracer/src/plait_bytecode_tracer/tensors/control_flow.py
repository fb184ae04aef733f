"""What torch's operators on functions compute, in Python: traced where they are no operators.

Branches and loops on tensors are those of Python, so a graph ends where one is decided, and what
follows is compiled for each way that is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

_Function = Callable[..., Any]


def cond(pred: Any, true_fn: _Function, false_fn: _Function, operands: Sequence[Any] = ()) -> Any:
    """`torch.cond`: one of two functions."""
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def while_loop(cond_fn: _Function, body_fn: _Function, carried_inputs: Any) -> Any:
    """`while_loop`: what is carried is copied where the loop does not run."""
    from torch._higher_order_ops.utils import validate_subgraph_args_types

    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("Expect cond_fn and body_fn to be callable.")
    validate_subgraph_args_types(pytree.tree_leaves(carried_inputs))
    carried = carried_inputs
    if not cond_fn(*carried):
        return pytree.tree_map(_copied, carried)
    carried = body_fn(*carried)
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def map_rows(function: _Function, rows: Sequence[Any], others: Sequence[Any] = ()) -> Any:
    """`map`: a function of each row, stacked. `torch.vmap` computes it for all rows at once."""
    found = torch.vmap(lambda *row: function(*row, *others))(*rows)
    return pytree.tree_map(torch.Tensor.contiguous, found)


def scan(
    combine: _Function, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Any = ()
) -> tuple[Any, Any]:
    """`scan`: what is carried in the end, and what each row gave, stacked."""
    carry = init
    carried: Any = None
    rows: list[Any] = []
    spec: Any = None
    for place in range(xs[0].shape[0]):
        carried, row = combine(*carry, *[x[place] for x in xs], *additional_inputs)
        carry = pytree.tree_leaves(carried)
        leaves, spec = pytree.tree_flatten(row)
        rows.append(leaves)
    stacked = [torch.stack([row[number] for row in rows]) for number in range(len(rows[0]))]
    return carried, pytree.tree_unflatten(stacked, spec)
