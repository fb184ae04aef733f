"""Gradients that can be differentiated: the program runs again, under autograd.

Its own nodes are then what gradients of gradients go through, to any order and by eager's
formulas. It runs on the same inputs, under the same autocast, and draws the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves

from plait_fx_passes.aten_graph import AttributeInput, UserInput
from plait_fx_passes.training.freeing import check_versions
from plait_fx_passes.training.gradient_program import Uses, base_of
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.plan import TrainingPlan
from plait_fx_passes.training.remembering import Before, Cuts, Geometry
from plait_fx_passes.training.returned import shown_results
from plait_fx_passes.training.staged import cut_at
from plait_fx_passes.training.surroundings import as_before


class Again:
    """Runs the torch-level program of a joint graph to differentiate its gradients."""

    def __init__(self, plan: TrainingPlan, joint: JointGraph, program: fx.GraphModule) -> None:
        self._joint = joint
        self._program = program
        self._cut_programs: dict[object, fx.GraphModule] = {}
        self._attributes = {name for name, _ in program.named_parameters()}
        self._attributes |= {name for name, _ in program.named_buffers()}
        self._autocast = plan.autocast
        placeholders = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
        self.copied = plan.copied
        self.kept = plan.kept
        self.uses = Uses(self.kept, self.copied, self._autocast)
        self._others = {
            n: node.meta["val"] for n, node in enumerate(placeholders) if n not in plan.used
        }
        self._open = plan.open_inputs

    def sources_of(self, before: Before) -> list[torch.Tensor]:
        """What gradients flow to, as ``uses.sources`` lists it."""
        kept = zip(self.kept, before.kept, strict=True)
        return [*(before.stands.get(n, each) for n, each in kept), *before.copies]

    def gradients(
        self,
        before: Before,
        tangents: Sequence[torch.Tensor | None],
        cuts: Cuts | None = None,
    ) -> tuple[torch.Tensor | None, ...]:
        """For each input, then for each copy, its gradient as a differentiable function; then, for
        each of the ``cuts``, what comes to it, which goes no further.

        Where gradients are not recorded, as when anomaly mode looks for what is wrong, they are
        not differentiable.

        Args:
            before: what the program was called with.
            tangents: for each differentiable result of the program its gradient, or None.
            cuts: outputs at which the gradients end.

        Raises:
            RuntimeError: an input that gradients depend on was written to since.
        """
        check_versions(before.kept, before.versions)
        given = dict(zip(self.uses.sources, self.sources_of(before), strict=True))
        with torch.enable_grad():
            sources = self.sources(given, dict(zip(self._open, before.geometries, strict=True)))
            with self.as_before(before.states, self._autocast):
                results, passed = self._run(sources, cuts)
        for place, each in enumerate(passed):
            sources[self._joint.input_count + place] = each
        return self.differentiated(results, tangents, sources, len(passed))

    def sources(
        self, given: Mapping[int, torch.Tensor], geometries: Mapping[int, Geometry]
    ) -> dict[int, torch.Tensor]:
        """What gradients are asked for, from the inputs that they depend on, by placeholder; the
        others have the geometries that are given, or those that the program was traced with."""
        found = _apart(given.items())
        for n, value in self._others.items():
            geometry = geometries.get(n, (tuple(value.shape), tuple(value.stride())))
            found[n] = self._zeros(n, value, geometry)
        return found

    def differentiated(
        self,
        results: Mapping[int, torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        sources: dict[int, torch.Tensor],
        passed: int = 0,
    ) -> tuple[torch.Tensor | None, ...]:
        """For each input, then for each copy, its gradient; then for outputs that are ``passed``,
        which are among the sources behind the inputs."""
        pairs = [
            (results[n], tangent)
            for n, tangent in zip(self._joint.tangents, tangents, strict=True)
            if tangent is not None and results[n].requires_grad
        ]
        found = _differentiated(pairs, sources)
        if not torch.is_grad_enabled():
            found = {n: None if grad is None else grad.detach() for n, grad in found.items()}
        copied = set(self.copied)
        count = self._joint.input_count
        own = [None if n in copied else found.get(n) for n in range(count)]
        behind = [found.get(count + place) for place in range(passed)]
        return (*own, *(found.get(n) for n in self.copied), *behind)

    def _inputs(self, sources: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """The program's inputs as they were; the program may write to what it gets."""
        found = dict(sources)
        for n in (*self.copied, *self._others):
            found[n] = sources[n].clone()
        return [found[n] for n in range(self._joint.input_count)]

    def _zeros(self, n: int, value: torch.Tensor, geometry: Geometry) -> torch.Tensor:
        """In the place of an input whose values no gradient depends on."""
        size, stride = geometry
        made = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device).zero_()
        return made.requires_grad_(self._joint.gradients[n] is not None)

    def results(self, sources: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The program's tensor for each result of the joint graph."""
        return self._run(sources, None)[0]

    def _run(
        self, sources: dict[int, torch.Tensor], cuts: Cuts | None
    ) -> tuple[dict[int, torch.Tensor], Sequence[torch.Tensor]]:
        """The program's tensor for each result of the joint graph, and those of the cuts."""
        inputs = self._inputs(sources)
        program = self._joint.program
        if cuts is None:
            leaves = tree_leaves(self._call(self._program, inputs))
        else:
            program_from = self.cut(cuts.places, tuple(each is not None for each in cuts.tensors))
            leaves = tree_leaves(self._call(program_from, inputs, cuts.given))
        count = len(program.outputs)
        found: dict[int, torch.Tensor] = {}
        for result, (position, is_view) in shown_results(program.outputs).items():
            found[result] = base_of(leaves[position]) if is_view else leaves[position]
        for mutation in program.mutations:
            found[mutation.result] = inputs[mutation.input]
        return found, leaves[count:]

    def cut(self, places: tuple[int, ...], given: tuple[bool, ...]) -> fx.GraphModule:
        """The program that begins anew at outputs, some of which are given."""
        made = self._cut_programs.get((places, given))
        if made is None:
            outputs = [self._joint.passed[n] for n in places]
            made = self._cut_programs[places, given] = cut_at(self._program, outputs, given)
        return made

    def _call(
        self,
        program: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        more: Sequence[torch.Tensor] = (),
    ) -> object:
        """Run a program on these arguments, parameters and buffers, and ``more`` arguments."""
        given = list(zip(self._joint.program.inputs, inputs, strict=True))
        arguments = [tensor for source, tensor in given if isinstance(source, UserInput)]
        attributes = {
            source.name: tensor
            for source, tensor in given
            if isinstance(source, AttributeInput) and source.name in self._attributes
        }
        with torch.set_grad_enabled(not self._joint.begins_without_gradients):
            if not attributes:
                return program(*arguments, *more)
            with _reparametrize_module(program, attributes):
                return program(*arguments, *more)

    def as_before(
        self, states: Sequence[torch.Tensor], autocast: Sequence[tuple[str, torch.dtype]] = ()
    ) -> AbstractContextManager[None]:
        """Generators as they were when the compiled program ran, and this autocast alone."""
        return as_before(states, autocast, draws=self._joint.random)


def _apart(inputs: Iterable[tuple[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Each input as a view of its own: gradients are asked for these, and so do not include
    what comes to an input through another, or through the same in another place."""
    return {n: tensor.view_as(tensor) if tensor.requires_grad else tensor for n, tensor in inputs}


def _differentiated(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]], sources: dict[int, torch.Tensor]
) -> dict[int, torch.Tensor | None]:
    """The gradient of each source that needs one, from results and their gradients."""
    wanted = [n for n, each in sources.items() if each.requires_grad]
    if not pairs or not wanted:
        return {}
    found = torch.autograd.grad(
        [result for result, _ in pairs],
        [sources[n] for n in wanted],
        [tangent for _, tangent in pairs],
        create_graph=True,
        allow_unused=True,
    )
    return dict(zip(wanted, found, strict=True))
