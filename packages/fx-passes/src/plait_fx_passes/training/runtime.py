"""A program with compiled forward and backward, as autograd and its caller see it in eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import fx

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.runtime import wrap_runtime, writable
from plait_fx_passes.training.again import Again, inputs_of_gradients
from plait_fx_passes.training.backwards import Backwards
from plait_fx_passes.training.higher import CompileGradients, Higher
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.nodes import autograd_node, program_around
from plait_fx_passes.training.partition import Partition, SavedInput, SavedResult
from plait_fx_passes.training.reading import note_reads
from plait_fx_passes.training.watching import (
    noting_writes,
    watched_inputs,
)
from plait_fx_passes.training.written_views import shows_nodes_of_views

Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]


def wrap_training(
    joint: JointGraph,
    parts: Partition,
    forward: Compiled,
    backward: Compiled | None,
    program: fx.GraphModule,
    *,
    compile_part: Callable[[AtenGraph], Compiled] | None = None,
    compile_gradients: CompileGradients | None = None,
    eager: Callable[..., object] | None = None,
    written: Mapping[int, int] | None = None,
) -> Callable[..., object]:
    """The program with compiled forward and backward.

    Args:
        joint: what was partitioned.
        parts: the partition.
        forward: takes the program's inputs, returns its results and what is saved.
        backward: takes what is saved and the tangents, returns the gradients; None where
            ``compile_part`` makes it when it first runs.
        program: the torch-level program, from which gradients that are to be differentiated
            themselves are computed anew.
        compile_part: compiles what is left of the backward where gradients are given for some
            of the results only, once for each choice of them; None for ATen's kernels.
        compile_gradients: compiles the program of gradients that are to be differentiated, for
            calls that need gradients; returns None where it cannot. Without it that program runs
            by ATen's kernels.
        eager: what runs in anomaly mode, which speaks of eager's own autograd nodes, and where
            those of inputs show that are views; by default the program.
        written: results that ``forward`` does not return but writes to an input, by position,
            each with that input; of those that :func:`writable_in_training` says.

    Returns:
        A function of the program's own arguments: aliasing, mutation and autograd's view of
        them are those of eager.
    """
    again = Again(joint, program)
    backwards = Backwards(joint, parts, backward, compile_part, extra=len(again.copied))
    higher = Higher(joint, program, again, parts, compile_gradients)
    node = autograd_node(joint, parts, forward, backwards, again, higher, written or {})
    run = wrap_runtime(
        program_around(joint), node, written, note=noting_writes(watched_inputs(joint, parts)[1])
    )
    captured: Callable[..., object] = program if eager is None else eager
    shows = shows_nodes_of_views(joint)

    def call(*arguments: torch.Tensor) -> object:
        return captured(*arguments) if torch.is_anomaly_enabled() else run(*arguments)

    def call_looking_at_views(*arguments: torch.Tensor) -> object:
        if shows is not None and torch.is_grad_enabled() and shows(arguments):
            return captured(*arguments)
        return call(*arguments)

    def call_turning_gradients_on(*arguments: torch.Tensor) -> object:
        if torch.is_anomaly_enabled() or (shows is not None and shows(arguments)):
            return captured(*arguments)
        with torch.enable_grad():
            return run(*arguments)

    made = call if shows is None else call_looking_at_views
    made = call_turning_gradients_on if joint.begins_without_gradients else made
    return note_reads(made, joint.program)


def writable_in_training(joint: JointGraph, parts: Partition) -> dict[int, int]:
    """Results that a compiled forward may write to an input's memory itself, with that input.

    Those of :func:`writable` that no backward needs, old or new, and of which autograd need not
    know whose gradients flow on through them.
    """
    kept = inputs_of_gradients(joint)
    saved = {each.result for each in parts.saved if isinstance(each, SavedResult)}
    saved |= set(joint.tangents)
    kept |= {each.input for each in parts.saved if isinstance(each, SavedInput)}
    return {
        result: index
        for result, index in writable(joint.program).items()
        if result not in saved and index not in kept and joint.gradients[index] is None
    }
