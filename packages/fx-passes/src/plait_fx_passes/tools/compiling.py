"""From a compiler of flat graphs to a compiler of programs, training included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import NoGradientsError
from plait_fx_passes.passes.manager import run_passes
from plait_fx_passes.runtime import wrap_runtime
from plait_fx_passes.to_functional import to_aten
from plait_fx_passes.training.joint import to_joint
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.modes import records_gradients
from plait_fx_passes.training.partition import Partition, partition
from plait_fx_passes.training.pieces import in_pieces, run_pieces
from plait_fx_passes.training.runtime import wrap_training
from plait_fx_passes.training.waypoints import WaypointError

Runner: TypeAlias = Callable[..., Any]
GraphCompiler: TypeAlias = Callable[[AtenGraph, str], Runner]
"""From a flat graph and what it is ("inference", "forward" or "backward") to what runs it."""


def compile_with(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], compiler: GraphCompiler
) -> Runner:
    """The program with its ATen graphs run by ``compiler``.

    Args:
        gm: a torch-level graph; not changed.
        example_inputs: a tensor for each placeholder; where gradients are enabled and one of
            them, or a parameter, needs gradients, forward and backward are compiled.
        compiler: called for each flat graph, after the default passes.

    Returns:
        A function of the program's own arguments, with eager's mutations, aliasing and
        gradients.

    Raises:
        AtenTraceError: the program cannot be recorded.
    """
    try:
        found = joint_of(gm, example_inputs)
    except WaypointError as error:
        pieces = in_pieces(gm, example_inputs, error)
        return run_pieces(pieces, lambda each: compile_with(each.program, each.examples, compiler))
    if found is None:
        graph = run_passes(to_aten(gm, example_inputs))
        return wrap_runtime(graph, compiler(graph, "inference"))
    joint, parts = found
    return wrap_training(
        joint,
        parts,
        compiler(parts.forward, "forward"),
        compiler(parts.backward, "backward"),
        gm,
        compile_part=lambda graph: compiler(graph, "backward"),
    )


def joint_of(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor]
) -> tuple[JointGraph, Partition] | None:
    """The joint graph after the default passes, and its partition; None without gradients."""
    if not records_gradients(gm) or not _may_need_gradients(gm, example_inputs):
        return None
    try:
        recorded = to_joint(gm, example_inputs)
    except NoGradientsError:
        return None
    if not recorded.tangents:  # it differentiates inside, and needs no backward
        return None
    joint = recorded.replace_graph(run_passes(recorded.flat()).graph)
    return joint, partition(joint)


def _may_need_gradients(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> bool:
    nodes = gm.graph.find_nodes(op="placeholder")
    marked = any(node.meta.get("requires_grad", False) for node in nodes)
    tensors = [*example_inputs, *gm.parameters(), *gm.buffers()]
    return marked or any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)
