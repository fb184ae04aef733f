"""A program with compiled forward and backward, as autograd and its caller see it in eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.runtime import wrap_runtime, writable
from plait_fx_passes.training.backwards import Backwards, Ready
from plait_fx_passes.training.differentiating import Deeper, Differentiator
from plait_fx_passes.training.freeing import Freeing
from plait_fx_passes.training.nodes import autograd_node, program_around
from plait_fx_passes.training.places import SavedInput, SavedResult
from plait_fx_passes.training.plan import GetGraphs, Graphs, TrainingPlan
from plait_fx_passes.training.remembering import Remembering
from plait_fx_passes.training.watching import noting_writes
from plait_fx_passes.training.written_views import shows_nodes_of_views
from plait_utils.forks import new_reentrant_lock

if TYPE_CHECKING:
    from torch import fx

    from plait_fx_passes.training.higher import CompileGradients
    from plait_fx_passes.training.joint_graph import JointGraph
    from plait_fx_passes.training.partition import Partition

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
    plan: TrainingPlan | None = None,
    note: Callable[[Ready], None] | None = None,
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
        plan: what :func:`plan_of` has found, if that is known.
        note: is told of each part of the backward that is compiled.

    Returns:
        A function of the program's own arguments: aliasing, mutation and autograd's view of
        them are those of eager.
    """
    from plait_fx_passes.training.planning import plan_of
    from plait_fx_passes.training.reading import note_reads

    graphs = Graphs(joint, parts, program)
    run = run_plan(
        plan or plan_of(joint, parts),
        lambda: graphs,
        forward,
        program if eager is None else eager,
        backward=backward,
        compile_part=compile_part,
        compile_gradients=compile_gradients,
        written=written,
        note=note,
    )
    return note_reads(run, joint.program)


def run_plan(
    plan: TrainingPlan,
    graphs: GetGraphs,
    forward: Compiled,
    eager: Callable[..., object],
    *,
    backward: Compiled | None = None,
    compile_part: Callable[[AtenGraph], Compiled] | None = None,
    compile_gradients: CompileGradients | None = None,
    written: Mapping[int, int] | None = None,
    ready: Sequence[Ready] = (),
    note: Callable[[Ready], None] | None = None,
) -> Callable[..., object]:
    """:func:`wrap_training` of what is known of the graphs, which are asked for what is rare.

    Args:
        plan: of the joint graph and its partition.
        graphs: gives these, and the program; it is called at most once.
        forward: as there, as all that is not named here.
        eager: what runs in anomaly mode, and where nodes of inputs show that are views.
        ready: parts of the backward that are compiled.
    """
    remembering = Remembering(plan)
    freeing = Freeing(plan.flow, plan.lines)
    once = _Once(plan, graphs, freeing, compile_gradients)
    backwards = Backwards(
        *(plan, once.graphs, backward, compile_part),
        extra=len(remembering.copied),
        ready=ready,
        note=note,
    )
    differentiate = Differentiator(plan, backwards, remembering, freeing, once.deeper)
    node = autograd_node(plan, forward, differentiate, remembering, written or {})
    run = wrap_runtime(program_around(plan), node, written, note=noting_writes(plan.written))
    shows = shows_nodes_of_views(plan)

    def call(*arguments: torch.Tensor) -> object:
        return eager(*arguments) if torch.is_anomaly_enabled() else run(*arguments)

    def call_looking_at_views(*arguments: torch.Tensor) -> object:
        if shows is not None and torch.is_grad_enabled() and shows(arguments):
            return eager(*arguments)
        return call(*arguments)

    def call_turning_gradients_on(*arguments: torch.Tensor) -> object:
        if torch.is_anomaly_enabled() or (shows is not None and shows(arguments)):
            return eager(*arguments)
        with torch.enable_grad():
            return run(*arguments)

    made = call if shows is None else call_looking_at_views
    return call_turning_gradients_on if plan.begins_without_gradients else made


class _Once:
    """The graphs, and what computes gradients that are differentiated, once they are asked for."""

    def __init__(
        self,
        plan: TrainingPlan,
        graphs: GetGraphs,
        freeing: Freeing,
        compile_gradients: CompileGradients | None,
    ) -> None:
        self._plan = plan
        self._get = graphs
        self._freeing = freeing
        self._compile = compile_gradients
        self._lock = new_reentrant_lock()
        self._graphs: Graphs | None = None
        self._deeper: Deeper | None = None

    def graphs(self) -> Graphs:
        if self._graphs is None:
            with self._lock:
                self._graphs = self._graphs or self._get()
        return self._graphs

    def deeper(self) -> Deeper:
        if self._deeper is None:
            with self._lock:
                self._deeper = self._deeper or self._made()
        return self._deeper

    def _made(self) -> Deeper:
        from plait_fx_passes.training.again import Again
        from plait_fx_passes.training.higher import Higher

        graphs = self.graphs()
        again = Again(self._plan, graphs.joint, graphs.program)
        return Deeper(again, Higher(graphs, again, self._freeing, self._compile))


def writable_in_training(joint: JointGraph, parts: Partition) -> dict[int, int]:
    """Results that a compiled forward may write to an input's memory itself, with that input.

    Those of :func:`writable` that no backward needs, old or new, and of which autograd need not
    know whose gradients flow on through them.
    """
    from plait_fx_passes.training.planning import inputs_of_gradients

    kept = inputs_of_gradients(joint)
    saved = {each.result for each in parts.saved if isinstance(each, SavedResult)}
    saved |= set(joint.tangents)
    kept |= {each.input for each in parts.saved if isinstance(each, SavedInput)}
    return {
        result: index
        for result, index in writable(joint.program).items()
        if result not in saved and index not in kept and joint.gradients[index] is None
    }
