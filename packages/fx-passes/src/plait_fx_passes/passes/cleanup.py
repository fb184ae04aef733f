"""Dead code and common subexpressions."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.op_info import op_info, raises_for_data
from plait_fx_passes.passes.base import Pass, PassContext


def has_effects(node: fx.Node) -> bool:
    """Whether running the node does more than compute its value.

    Random operators advance the generator as in eager, even when their value is not used;
    collectives are calls that other processes wait for; operators that return nothing
    (assertions) are there for what they do.
    """
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    info = op_info(target)
    return info.random or info.communicates or not target._schema.returns


def _eliminate_dead_code(context: PassContext) -> None:
    for node in reversed(context.graph.nodes):
        if (
            node.op == "call_function"
            and not node.users
            and not (has_effects(node) or raises_for_data(node))
            and not context.erase(node)
        ):
            return


def _eliminate_common_subexpressions(context: PassContext) -> None:
    first: dict[object, fx.Node] = {}
    for node in context.graph.nodes:
        if node.op != "call_function" or has_effects(node) or not node.users:
            continue
        # What a checkpoint computes again is not to be kept from the first time.
        again = "recomputed" in node.meta
        key = (again, node.target, value_key(node.args), value_key(tuple(node.kwargs.items())))
        known = first.setdefault(key, node)
        if known is not node:
            context.replace(node, known)


def value_key(argument: object) -> object:
    """A hashable key that is equal only for arguments an operator cannot tell apart.

    Numbers carry their type (``1``, ``1.0`` and ``True`` differ) and floats their text (``0.0``
    and ``-0.0`` differ, ``nan`` equals itself).
    """
    if isinstance(argument, (list, tuple)):
        return tuple(value_key(each) for each in argument)
    if isinstance(argument, (int, float, complex)):
        return type(argument), repr(argument)
    if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(argument), argument.node.expr
    if isinstance(argument, slice):
        return slice, value_key((argument.start, argument.stop, argument.step))
    return argument


DEAD_CODE = Pass(
    "dead-code",
    _eliminate_dead_code,
    "removes what no result needs; keeps random operators, and those that may raise for their data",
)
COMMON_SUBEXPRESSIONS = Pass(
    "common-subexpressions",
    _eliminate_common_subexpressions,
    "computes equal calls once, where their results need not be separate memory",
)
