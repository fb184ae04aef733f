"""The arguments of a program that is recorded under autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.inputs import InputTable
from plait_fx_passes.record.recorder import Recorder


def require_gradients(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    table: InputTable,
    recorder: Recorder,
    *,
    leaves: bool,
) -> None:
    """Let autograd follow the arguments that need gradients.

    A placeholder's ``meta["requires_grad"]`` says more than the example input, which whoever
    traced the program may have written to. ``leaves`` says that the arguments themselves are what
    gradients are asked for: autograd then refuses writes to them.
    """
    nodes = gm.graph.find_nodes(op="placeholder")
    for index, (node, example) in enumerate(zip(nodes, example_inputs, strict=True)):
        needed = getattr(example, "requires_grad", False)  # a number has no such thing
        if not node.meta.get("requires_grad", needed):
            continue
        fake = table.arguments[index]
        if leaves:
            table.leaves[index] = (fake.requires_grad_(),)
            continue
        leaf = fake_of(recorder.fake_mode, fake).requires_grad_()
        table.leaves[index] = (leaf,)
        with torch.enable_grad():
            argument = leaf.clone()
        if argument.stride() != fake.stride():
            raise AtenTraceError("an input that needs gradients has gaps or overlaps in memory")
        table.arguments[index] = cast(FakeTensor, argument)
        table.stand_in(recorder, index, cast(FakeTensor, argument))
