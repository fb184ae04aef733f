"""The autograd nodes of a compiled program: what eager's graph of nodes would do, in one, or in
one for all results that come from the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import torch

from plait_fx_passes.aten_graph import AtenGraph, Computed, ResultView
from plait_fx_passes.runtime import output_builder
from plait_fx_passes.training.differentiating import Differentiator, Gradients
from plait_fx_passes.training.groups import groups_of
from plait_fx_passes.training.looking import note_hooks
from plait_fx_passes.training.picking import Picker, picker
from plait_fx_passes.training.places import Places, Saved, SavedInput, SavedResult, SavedSize
from plait_fx_passes.training.plan import TrainingPlan
from plait_fx_passes.training.remembering import Remembering
from plait_fx_passes.training.several import MakeOutput, Nodes, applied
from plait_fx_passes.training.stands import stands_for
from plait_fx_passes.training.watching import watch_results, watched

Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]

_ELEMENT = torch.empty((), dtype=torch.bool)
"""Expanded, it holds a size."""

_detach = torch.Tensor.detach
_transforms = torch._C._are_functorch_transforms_active


def autograd_node(
    plan: TrainingPlan,
    forward: Compiled,
    differentiate: Differentiator,
    remembering: Remembering,
    written: Mapping[int, int],
) -> Compiled:
    """A function from the program's inputs to its results that autograd can differentiate.

    It returns those that ``forward`` returns, all but the ``written`` ones.
    """
    inputs = plan.input_count
    left = [n for n in range(plan.forward_count) if n not in written]
    places = {old: new for new, old in enumerate(left)}
    count = sum(n < plan.result_count for n in left)
    differentiable = tuple(places[n] for n in plan.tangents)
    constant = tuple(n for n in range(count) if n not in differentiable)
    only_tangents = not constant and differentiable == tuple(range(count))
    sizes = [each for each in plan.saved if isinstance(each, SavedSize)]
    looked_at = [index for index, _ in plan.looked_at]
    pick_looked_at: Picker[torch.Tensor] = picker(looked_at)

    def place_of(saved: Saved) -> int:
        if isinstance(saved, SavedInput) and saved.input in looked_at:
            return inputs + len(left) + len(sizes) + looked_at.index(saved.input)
        if isinstance(saved, SavedInput):
            return saved.input
        if isinstance(saved, SavedResult):
            return inputs + places[saved.result]
        return inputs + len(left) + sizes.index(saved)

    pick_saved: Picker[torch.Tensor] = picker([place_of(each) for each in plan.saved])
    unwritten = plan.unwritten

    def differentiate_some(ctx: Any, *given: torch.Tensor | None) -> Gradients:
        return differentiate(ctx, *[given[n] for n in differentiable])

    class CompiledProgram(torch.autograd.Function):
        """The forward and backward that were compiled for one graph."""

        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ctx.set_materialize_grads(False)
            states = remembering.states() if plan.random else ()
            own = given[:inputs]
            # A program may cut its results from one block of memory; no view is returned.
            found = [each.data if each._is_view() else each for each in forward(*own)]
            ctx.before = remembering.remember(given, states)
            ctx.left = None
            ctx.watched = watched(unwritten, own) if unwritten else None
            if sizes:
                found += [_ELEMENT.expand(own[each.input].shape[each.dim]) for each in sizes]
            if looked_at:
                found += map(_detach, pick_looked_at(own))
            ctx.save_for_backward(*pick_saved((*own, *found)))
            if constant:
                ctx.mark_non_differentiable(*[found[n] for n in constant])
            return tuple(found[:count])

        backward = staticmethod(differentiate.__call__ if only_tangents else differentiate_some)

    note_hooks(CompiledProgram)
    copies = {n: inputs + place for place, n in enumerate(remembering.copied)}
    groups = groups_of(plan.flow, plan.passed, copies, together=plan.is_hidden)
    nodes = None
    if len(groups) > 1 or plan.passed:
        outputs, shown = _passed_outputs(plan, places)
        held = CompiledProgram.forward
        nodes = Nodes(groups, held, differentiate, differentiable, outputs, shown)
    seen = tuple(
        each._replace(position=places[each.position])
        for each in plan.results
        if each.position in places
    )
    return _entered(CompiledProgram, nodes, plan, remembering, differentiable, seen)


def program_around(plan: TrainingPlan) -> AtenGraph:
    """The program, as it is around its nodes: of the outputs that gradients pass, which these
    return behind the results, views are made already."""
    outputs = list(plan.program.outputs)
    for place, each in enumerate(plan.passed):
        if not isinstance(outputs[each.output], Computed):
            outputs[each.output] = Computed(place - len(plan.passed))
    return replace(plan.program, outputs=tuple(outputs))


def _passed_outputs(
    plan: TrainingPlan, places: Mapping[int, int]
) -> tuple[list[MakeOutput], list[int | None]]:
    """What makes each output that gradients pass, where results have these places; and the tangent
    of the result that it shows, None for views of inputs."""
    makers: list[MakeOutput] = []
    shown: list[int | None] = []
    numbers = {result: number for number, result in enumerate(plan.tangents)}
    for each in plan.passed:
        source = plan.program.outputs[each.output]
        if isinstance(source, (Computed, ResultView)):
            shown.append(numbers[source.result])
            source = replace(source, result=places[source.result])
        else:
            shown.append(None)
        makers.append(cast(MakeOutput, output_builder(source, plan.program)))
    return makers, shown


def _entered(
    node: type[torch.autograd.Function],
    nodes: Nodes | None,
    plan: TrainingPlan,
    remembering: Remembering,
    differentiable: Sequence[int],
    seen: Places,
) -> Compiled:
    """The node, or several ``nodes``, which are to know copies of some inputs
    besides, and no history of inputs that no gradient reaches: autograd would run, and free, what
    these come from. One that the gradient of nothing reaches, as that of a count of what is not
    zero, is reached all the same. What ``seen`` has is watched: results."""
    checked: Compiled = node.apply
    apply: Compiled = applied(node)
    apart = plan.apart

    outputs = [] if nodes is None else nodes.outputs
    copied, unsaved = remembering.copied, remembering.unsaved
    if nodes is None and not apart and not copied and not unsaved and not seen:

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
            found = checked(*inputs)
            return [*found, *(make(inputs, found) for make in outputs)]
        state: Any
        if nodes is None:
            results = apply(*inputs)
            state = results[differentiable[0]].grad_fn if differentiable else None
        else:
            results, state = nodes.call(inputs)
        if seen and state is not None:
            watch_results(state, seen, results)
        for n in unsaved if state is not None else ():
            if not given[n].is_leaf:
                state.before = state.before._replace(stands=stands_for(unsaved, given))
                break
        return results

    return enter
