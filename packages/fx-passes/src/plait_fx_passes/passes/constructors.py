"""Constants made on the CPU for tensors of another device, made there.

`torch.arange(n).to(device)` makes a copy between devices, which the program waits for; so does an
index that is counted on the CPU. What is made of numbers alone by exactly rounded arithmetic has
the same elements on every device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext, made_by
from plait_fx_passes.passes.casts import keeps_values
from plait_fx_passes.passes.constants import EXACT, REARRANGING
from plait_fx_passes.verifier import recompute

aten = torch.ops.aten

_ALIKE = EXACT | REARRANGING | {aten.cat.default, aten.flip.default, aten.roll.default}
"""What every device computes alike, and rounds alike."""

_CPU = torch.device("cpu")


def _move_constructors(context: PassContext) -> None:
    """Find what is computed on the CPU of numbers alone, and move what only other devices use."""
    made = [node for node in context.graph.nodes if node.op == "call_function"]
    movable: dict[fx.Node, torch.device | None] = {}
    for node in made:
        if _is_constructor(node) or _computes_alike(node, movable):
            movable[node] = None
    for node in reversed(movable):
        movable[node] = _wanted(node, movable)
    for node in _dropped(movable):
        del movable[node]
    if movable and context.fuel.take():
        context.rewrites += 1
        for node, device in movable.items():
            _move(context, node, device)


def _is_constructor(node: fx.Node) -> bool:
    """`full` of a known number, and whole numbers counted by whole steps, on the CPU."""
    if node.target not in (aten.full.default, aten.arange.start_step) or not _is_on_cpu(node):
        return False
    if node.all_input_nodes:
        return False  # made of numbers that are read from tensors
    counts = node.target is aten.arange.start_step
    return not counts or not node.meta["val"].dtype.is_floating_point


def _is_on_cpu(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.device == _CPU


def _computes_alike(node: fx.Node, movable: dict[fx.Node, torch.device | None]) -> bool:
    """Whether a call on the CPU computes the same of movable operands on every device."""
    if node.target not in _ALIKE or not _is_on_cpu(node):
        return False
    operands = node.all_input_nodes
    if not operands or any(each not in movable for each in operands):
        return False
    return node.target is not aten._to_copy.default or _casts_alike(node)


def _casts_alike(node: fx.Node) -> bool:
    """Whether every device rounds a cast in the same way: to the nearest, if at all."""
    source, target = (each.meta["val"].dtype for each in (node.all_input_nodes[0], node))
    is_whole = not source.is_floating_point and not source.is_complex
    return keeps_values(source, target) or (is_whole and target in (torch.float32, torch.float64))


def _wanted(node: fx.Node, movable: dict[fx.Node, torch.device | None]) -> torch.device | None:
    """The one device that all users of a node want it on; None if there is none."""
    devices = {movable[user] if user in movable else _wanted_by(user, node) for user in node.users}
    return devices.pop() if len(devices) == 1 else None


def _wanted_by(user: fx.Node, node: fx.Node) -> torch.device | None:
    """Where a call takes an operand from the CPU to, if the operand may as well be there."""
    value = user.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device == _CPU:
        return None
    if user.target is aten._to_copy.default:
        return value.device if _casts_alike(user) else None
    if user.target is aten.index.Tensor:
        return value.device if node is not user.args[0] else None
    return value.device if _takes_number(user) else None


def _takes_number(user: fx.Node) -> bool:
    """Whether a call takes a tensor without dimensions from either device, and rounds alike.

    Kernels take one of the CPU as a number: they do not round it to the other operands' dtype, and
    divide by multiplying with its inverse.
    """
    if user.target not in EXACT or user.target is aten.div.Tensor:
        return False
    dtypes = {each.meta["val"].dtype for each in user.all_input_nodes}
    return len(dtypes) == 1 or user.target is aten.where.self


def _dropped(movable: dict[fx.Node, torch.device | None]) -> Iterable[fx.Node]:
    """What stays since it meets what stays: operands and users are on one device."""
    waiting = [node for node, device in movable.items() if device is None]
    stays = set(waiting)
    while waiting:
        node = waiting.pop()
        near = [*node.all_input_nodes, *(user for user in node.users if user in movable)]
        for each in near:
            if each not in stays:
                stays.add(each)
                waiting.append(each)
    return stays


def _move(context: PassContext, node: fx.Node, device: torch.device | None) -> None:
    assert context.fake_mode is not None, "a graph with tensors has fake ones"
    if "device" in node.kwargs or _is_constructor(node):
        node.kwargs = {**node.kwargs, "device": device}
    node.meta["val"] = recompute(context.fake_mode, node)
    node.meta |= made_by(context.running, node)
    context.matches[MOVE_CONSTRUCTORS.name] += 1


MOVE_CONSTRUCTORS = Pass(
    "constructors",
    _move_constructors,
    "makes constants on the device that all their users are on",
)
