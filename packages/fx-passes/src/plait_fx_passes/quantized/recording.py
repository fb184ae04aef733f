"""A node's value computed otherwise: a plain function, recorded in the node's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.passes.base import PassContext
from plait_fx_passes.patterns.ordering import Room
from plait_fx_passes.record.aliases import new_base, with_layout
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.guards import below_autograd
from plait_fx_passes.record.inputs import NothingToLift
from plait_fx_passes.record.recorder import Recorder
from plait_fx_passes.record.rules import composite_rules


def compute_instead(
    context: PassContext,
    node: fx.Node,
    inputs: Sequence[fx.Node],
    function: Callable[[dict[fx.Node, Tensor]], Tensor],
) -> bool:
    """Let the users of `node` use what `function` computes of the values of `inputs`, laid out as
    `node` is; False if memory or fuel do not allow it."""
    mode = context.fake_mode
    assert mode is not None, "a graph with tensors has fake ones"
    recorder = Recorder(mode, NothingToLift(), composite_rules(), {})
    recorder.graph = context.graph
    recorder.meta = {key: value for key, value in node.meta.items() if key != "val"}
    values: dict[fx.Node, Tensor] = {}
    for given in inputs:
        fake = fake_of(mode, given.meta["val"])
        recorder.bind(fake, new_base(fake, given.meta, node=given))
        values[given] = fake
    room = Room.at(node)
    with room.inserting():
        with below_autograd(), recorder:
            result = function(values)
        made = with_layout(recorder, recorder.node_of(cast(FakeTensor, result)), node.meta["val"])
    if context.replace(node, made):
        return True
    room.clear()
    return False
