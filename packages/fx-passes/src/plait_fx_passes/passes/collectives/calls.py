"""The calls that start a collective, those that wait for it, and what may move with them."""

from __future__ import annotations

import math
import operator
from enum import Enum
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.aliasing import is_view
from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.passes.cleanup import has_effects
from plait_utils import dataclass
from plait_utils.collectives import is_collective

ops = torch.ops._c10d_functional
aten = torch.ops.aten

WAIT = ops.wait_tensor.default


def communicates(graph: AtenGraph) -> bool:
    """Whether a graph calls collectives."""
    return any(is_collective(node.target) for node in graph.graph.nodes)


class Kind(Enum):
    """What a collective does."""

    REDUCE = "all-reduce"
    GATHER = "all-gather"
    SCATTER = "reduce-scatter"


_KINDS: dict[OpOverload, tuple[Kind, bool]] = {
    ops.all_reduce.default: (Kind.REDUCE, False),
    ops.all_reduce_coalesced.default: (Kind.REDUCE, True),
    ops.all_gather_into_tensor.default: (Kind.GATHER, False),
    ops.all_gather_into_tensor_coalesced.default: (Kind.GATHER, True),
    ops.reduce_scatter_tensor.default: (Kind.SCATTER, False),
    ops.reduce_scatter_tensor_coalesced.default: (Kind.SCATTER, True),
}
"""What each operator does, and whether it does so with several tensors."""


@dataclass(frozen=True, slots=True)
class Start:
    """A call that starts a collective, and those that wait for it: all that use its results.

    ``setting`` is what it is given besides tensors: the reduction, the group's size, the group.
    """

    node: fx.Node
    kind: Kind
    is_joint: bool
    setting: tuple[object, ...]
    waits: tuple[fx.Node, ...]

    @property
    def operand(self) -> fx.Node:
        """The tensor that it is given, if that is one."""
        return cast(fx.Node, self.node.args[0])


def start_of(node: fx.Node) -> Start | None:
    """The collective that a node starts; None where it starts none, or something other than waits
    uses what it gives."""
    found = _KINDS.get(cast(OpOverload, node.target)) if node.op == "call_function" else None
    if found is None or node.kwargs:
        return None
    kind, is_joint = found
    given = [user for user in node.users if user.target is not operator.getitem or not is_joint]
    if is_joint and given:
        return None
    parts = list(node.users) if is_joint else [node]
    waits = tuple(user for part in parts for user in part.users)
    if not all(user.target is WAIT for user in waits):
        return None
    return Start(node, kind, is_joint, tuple(node.args[1:]), waits)


def is_fence(node: fx.Node) -> bool:
    """Whether nothing that communicates may pass a node: it may do so itself, as operators that are
    not torch's own, and collectives of other kinds."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    if is_collective(target):
        return target is not WAIT and (target not in _KINDS or start_of(node) is None)
    return target.namespace not in ("aten", "prims")


def is_part(node: fx.Node) -> bool:
    """Whether a node looks at what another one gives, and computes nothing."""
    return node.target is operator.getitem or is_view(node)


_COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten.constant_pad_nd.default})


def is_elementwise(node: fx.Node) -> bool:
    """Whether a node computes each element of one of the operand, at no cost beside its memory."""
    target = node.target
    if not isinstance(target, OpOverload) or has_effects(node):
        return False
    return torch.Tag.pointwise in target.tags or target in _COPIES


def size_in_bytes(value: object) -> int | None:
    """How much memory a tensor, or several, take; None where that depends on the call."""
    if isinstance(value, (list, tuple)):
        sizes = [size_in_bytes(each) for each in value]
        return None if None in sizes else sum(cast("list[int]", sizes))
    if not isinstance(value, FakeTensor) or not all(type(size) is int for size in value.shape):
        return None
    return math.prod(value.shape) * value.element_size()
