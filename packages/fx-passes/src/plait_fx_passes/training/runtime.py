"""The autograd node of a compiled program: what eager's graph of nodes would do, in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.runtime import wrap_runtime, writable
from plait_fx_passes.training.again import Again, Before, inputs_of_gradients
from plait_fx_passes.training.backwards import Backwards
from plait_fx_passes.training.freeing import keeps_graph
from plait_fx_passes.training.higher import CompileGradients, Higher
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.partition import Partition, SavedInput, SavedResult
from plait_fx_passes.training.picking import Picker, picker
from plait_fx_passes.training.reading import note_reads
from plait_fx_passes.training.spent import USED_UP
from plait_fx_passes.training.stands import stands_for
from plait_fx_passes.training.watching import (
    check_unchanged,
    noting_writes,
    watched,
    watched_inputs,
)

Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]

_transforms = torch._C._are_functorch_transforms_active
_records = torch.is_grad_enabled
_finds_anomalies = torch.is_anomaly_enabled


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
        eager: what runs in anomaly mode, which speaks of eager's own autograd nodes; by default
            the program.
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
        joint.program, node, written, note=noting_writes(watched_inputs(joint, parts)[1])
    )
    anomalous: Callable[..., object] = program if eager is None else eager

    def call(*arguments: torch.Tensor) -> object:
        return anomalous(*arguments) if torch.is_anomaly_enabled() else run(*arguments)

    def call_turning_gradients_on(*arguments: torch.Tensor) -> object:
        if torch.is_anomaly_enabled():
            return anomalous(*arguments)
        with torch.enable_grad():
            return run(*arguments)

    made = call_turning_gradients_on if joint.begins_without_gradients else call
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


def autograd_node(
    joint: JointGraph,
    parts: Partition,
    forward: Compiled,
    backwards: Backwards,
    again: Again,
    higher: Higher,
    written: Mapping[int, int],
) -> Compiled:
    """A function from the program's inputs to its results that autograd can differentiate.

    It returns those that ``forward`` returns, all but the ``written`` ones.
    """
    inputs = joint.input_count
    left = [n for n in range(len(parts.forward.results)) if n not in written]
    places = {old: new for new, old in enumerate(left)}
    count = sum(n < joint.result_count for n in left)
    differentiable = tuple(places[n] for n in joint.tangents)
    constant = tuple(n for n in range(count) if n not in differentiable)
    only_tangents = not constant and differentiable == tuple(range(count))
    freeing, needed = higher.freeing, backwards.needed
    pick_saved: Picker[torch.Tensor] = picker(
        [
            each.input if isinstance(each, SavedInput) else inputs + places[each.result]
            for each in parts.saved
        ]
    )

    unwritten, _ = watched_inputs(joint, parts)
    count_of_inputs = inputs + len(again.copied)

    class CompiledProgram(torch.autograd.Function):
        """The forward and backward that were compiled for one graph."""

        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ctx.set_materialize_grads(False)
            states = again.states() if joint.random else ()
            own = given[:inputs]
            # A program may cut its results from one block of memory; no view is returned.
            found = [each.data if each._is_view() else each for each in forward(*own)]
            ctx.before = again.remember(given, states)
            ctx.left = None
            ctx.watched = watched(unwritten, own) if unwritten else None
            ctx.save_for_backward(*pick_saved((*own, *found)))
            if constant:
                ctx.mark_non_differentiable(*[found[n] for n in constant])
            return tuple(found[:count])

        @staticmethod
        def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            tangents = given if only_tangents else tuple([given[n] for n in differentiable])
            pattern = tuple([each is not None for each in tangents])
            if False in pattern and freeing.asks_for_nothing(ctx, pattern):
                return (None,) * count_of_inputs
            try:
                held = ctx.saved_tensors if ctx.left is None else freeing.held(ctx, pattern, needed)
            except RuntimeError as error:
                if not freeing.may_do_with_less(ctx, pattern, error):
                    raise
                versions = again.versions(_kept(ctx), parts.saved)
                held = freeing.held_in_part(ctx, pattern, needed, versions, error)
            if ctx.watched is not None:
                check_unchanged(ctx.watched, pattern)
            spent = None if keeps_graph() else freeing.freed_by(ctx, pattern)
            if _records() or _finds_anomalies():
                found = higher.gradients(ctx, _kept(ctx), tangents, held)
            elif joint.tells_apart and not all(pattern):
                found = again.gradients(_kept(ctx), tangents)
            else:
                if spent is not None and spent == freeing.everything:
                    ctx.before = None  # its memory is free for what the backward makes
                found = backwards.run(held, tangents, pattern)
            if spent is not None:
                freeing.free(ctx, held, spent)
            return found

    return _entered(CompiledProgram, joint, again, differentiable)


def _kept(ctx: Any) -> Before:
    """What the program was called with. Raises RuntimeError where a backward that freed it has
    begun, and has raised."""
    before: Before | None = ctx.before
    if before is None:
        raise RuntimeError(USED_UP)
    return before


def _entered(
    node: type[torch.autograd.Function],
    joint: JointGraph,
    again: Again,
    differentiable: Sequence[int],
) -> Compiled:
    """The node, which is to know copies of some inputs besides, and no history of inputs that no
    gradient reaches: autograd would run, and free, what these come from. One that the gradient of
    nothing reaches, as that of a count of what is not zero, is reached all the same."""
    checked: Compiled = node.apply
    # What `apply` itself ends in. The rest of it is for nodes that know functorch's transforms.
    apply: Compiled = super(torch.autograd.Function, node).apply  # type: ignore[misc]  # in C
    placeholders = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
    reached = frozenset().union(*joint.flow.reached)
    apart = [
        n
        for n, node in enumerate(placeholders)
        if n not in reached and _can_have_history(node.meta["val"])
    ]

    copied, unsaved = again.copied, again.unsaved
    if not apart and not copied and not unsaved:

        def enter_as_given(*given: torch.Tensor) -> Sequence[torch.Tensor]:
            return checked(*given) if _transforms() else apply(*given)

        return enter_as_given

    def enter(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        inputs = list(given)
        for n in apart:
            if inputs[n].requires_grad:
                inputs[n] = inputs[n].detach()
        inputs += [given[n].clone() for n in copied]
        if _transforms():
            return checked(*inputs)
        results = apply(*inputs)
        for n in unsaved:
            if not given[n].is_leaf:
                made: Any = results[differentiable[0]].grad_fn
                if made is not None:
                    made.before = made.before._replace(stands=stands_for(unsaved, given))
                break
        return results

    return enter


def _can_have_history(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex
