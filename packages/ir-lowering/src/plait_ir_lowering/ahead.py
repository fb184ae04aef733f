"""How the result of a node is used."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload

from plait_ir_lowering.registry import kind_of, rule_of


def feeds_loops(node: fx.Node) -> bool:
    """Whether every use, looking through views, is a loop, which can add a bias as it reads."""
    pending, seen = [node], {node}
    found = False
    while pending:
        for user in pending.pop().users:
            if user in seen:
                continue
            seen.add(user)
            kind = _kind(user)
            if kind == "view":
                pending.append(user)
            elif kind == "loops":
                found = True
            else:
                return False
    return found


def _kind(node: fx.Node) -> str:
    target = node.target
    if not isinstance(target, OpOverload) or rule_of(target) is None:
        return "other"
    return kind_of(target)
