"""Operators that are recorded once for operands that are alike, and copied for others.

An optimizer's step computes the same for each parameter. What an operator becomes in the graph
follows from the metadata of its operands alone, however many operators and fake tensors it takes
to find that out. So for the next operands of the same sizes, strides, dtypes and devices the nodes
are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Argument, map_arg

from plait_fx_passes.op_info import OpKind, op_info
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.numbers import ARITHMETIC, NumberNode, is_number
from plait_fx_passes.record.numbers import node_of as number_node
from plait_utils import dataclass
from plait_utils.fake import described

if TYPE_CHECKING:
    from plait_fx_passes.record.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose nodes follow from its key, and the nodes that it is given, by position."""

    key: object
    operands: tuple[fx.Node, ...]


class Repeated:
    """The nodes of calls that were recorded, by the calls' keys."""

    def __init__(self) -> None:
        self._recorded: dict[object, tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]] = {}
        """Operands, and nodes of which the last one gives the result."""

    def copied(self, recorder: Recorder, call: Call) -> fx.Node | None:
        """The result of a call like one that was recorded; None if there was none."""
        found = self._recorded.get(call.key)
        if found is None:
            return None
        operands, nodes = found
        copies = dict(zip(operands, call.operands, strict=True))
        for node in nodes:
            copies[node] = _copy(recorder, node, copies)
        return copies[nodes[-1]]

    def note(self, call: Call, nodes: Sequence[fx.Node], result: fx.Node) -> None:
        """Remember the nodes that a call has added, unless it did more than add them."""
        known = {*call.operands, *nodes}
        if (
            nodes
            and result is nodes[-1]
            and all(map(_is_plain, nodes))
            and all(known.issuperset(node.all_input_nodes) for node in nodes)
        ):
            self._recorded[call.key] = call.operands, tuple(nodes)


def call_of(
    recorder: Recorder, func: OpOverload, named: Mapping[str, object], *, in_backward: bool
) -> Call | None:
    """A call of a functional operator, if its nodes follow from metadata of fake tensors that have
    nodes, from numbers that have some, and from constants."""
    if in_backward or op_info(func).random:
        return None
    operands: list[fx.Node] = []
    parts: list[object] = []
    for name, value in named.items():
        if is_number(value):
            node: object = number_node(cast(torch.SymFloat, value))
            part: object = NumberNode
        elif isinstance(value, torch.Tensor):
            node = _current(recorder, value)
            part = described(recorder.fake_mode, value)
        else:
            parts.append((name, described(recorder.fake_mode, value)))
            if parts[-1] == (name, None):
                return None
            continue
        if part is None or not isinstance(node, fx.Node):
            return None
        operands.append(node)
        parts.append((name, part, operands.index(node)))
    gradients = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return Call((func, *parts, *gradients, torch.get_default_dtype()), tuple(operands))


def _current(recorder: Recorder, tensor: torch.Tensor) -> fx.Node | None:
    """The node that holds what a tensor does, if one does and no gradients flow to the tensor."""
    if not recorder.knows(tensor) or tensor.requires_grad:
        return None
    alias = recorder.alias_of(tensor)
    return alias.node if alias.version == alias.storage.version else None


def _is_plain(node: fx.Node) -> bool:
    """Whether a node computes a number, or a tensor in memory of its own."""
    if node.op != "call_function":
        return False
    if node.target in ARITHMETIC:
        return is_number(node.meta["val"])
    if not isinstance(node.target, OpOverload) or type(node.meta["val"]) is not FakeTensor:
        return False
    info = op_info(node.target)
    return info.kind is OpKind.FUNCTIONAL and not info.random


def _copy(recorder: Recorder, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    given = map_arg(cast(Argument, (node.args, node.kwargs)), copies.__getitem__)
    args, kwargs = cast("tuple[tuple[object, ...], dict[str, object]]", given)
    if node.target in ARITHMETIC:
        first, *others = [NumberNode(cast("fx.Node | float", each)) for each in args]
        return cast(fx.Node, first.applied(node.target, *others).value)
    value = fake_of(recorder.fake_mode, node.meta["val"])
    return recorder.emit(cast(OpOverload, node.target), args, kwargs, value)
