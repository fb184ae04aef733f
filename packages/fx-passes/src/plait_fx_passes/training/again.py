"""Gradients that can be differentiated: the program runs again, under autograd.

Its own nodes are then what gradients of gradients go through, to any order and by eager's
formulas. It runs on the same inputs, under the same autocast, and draws the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

import torch
from torch import fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves

from plait_fx_passes.aten_graph import (
    AttributeInput,
    ConstantInput,
    UserInput,
)
from plait_fx_passes.layouts import has_static_sizes
from plait_fx_passes.training.freeing import check_versions, versions_of
from plait_fx_passes.training.gradient_program import Uses, base_of
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.known import COMPUTED_FROM
from plait_fx_passes.training.partition import Saved, SavedInput
from plait_fx_passes.training.picking import Picker, picker
from plait_fx_passes.training.reading import ancestors
from plait_fx_passes.training.returned import shown_results
from plait_fx_passes.training.staged import cut_at
from plait_fx_passes.training.stands import Stands
from plait_fx_passes.training.surroundings import as_before, autocast_now, random_states

_Geometry: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"


class Before(NamedTuple):
    """What a program was called with, as far as its gradients depend on it: inputs that it does
    not write to, with their versions, copies of others, states of random generators, what
    stands for inputs where autograd may come to know others in their place, and the sizes and
    strides of inputs that differ from call to call."""

    kept: tuple[torch.Tensor, ...]
    copies: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    states: Sequence[torch.Tensor]
    stands: Stands
    geometries: tuple[_Geometry, ...] = ()


class Cuts(NamedTuple):
    """Outputs at which gradients end: their places among those that are passed, and the tensors
    that gradients are to flow on from in turn; None for values that are computed again."""

    places: tuple[int, ...]
    tensors: tuple[torch.Tensor | None, ...]

    @property
    def given(self) -> list[torch.Tensor]:
        """The tensors that there are."""
        return [each for each in self.tensors if each is not None]


class Again:
    """Runs the torch-level program of a joint graph to differentiate its gradients."""

    def __init__(self, joint: JointGraph, program: fx.GraphModule) -> None:
        self._joint = joint
        self._program = program
        self._cut_programs: dict[object, fx.GraphModule] = {}
        self._attributes = {name for name, _ in program.named_parameters()}
        self._attributes |= {name for name, _ in program.named_buffers()}
        self._autocast = autocast_now()
        written = {mutation.input for mutation in joint.program.mutations}
        placeholders = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
        used = inputs_of_gradients(joint)
        self.copied = tuple(sorted(written & used))
        """The inputs that are written to, though gradients depend on what they were."""
        self.kept = tuple(sorted(used - written))
        """The other inputs whose values gradients depend on; all others need not stay alive."""
        saved = {index for index, _ in joint.saved}
        self.unsaved = tuple(
            n for n in self.kept if n not in saved and joint.gradients[n] is not None
        )
        """Those of them that get gradients, and of which autograd would save no values."""
        self.uses = Uses(self.kept, self.copied, self._autocast)
        self._count = joint.input_count
        self._pick_kept: Picker[torch.Tensor] = picker(self.kept)
        self._others = {n: node.meta["val"] for n, node in enumerate(placeholders) if n not in used}
        self._open = tuple(n for n, value in self._others.items() if not has_static_sizes(value))

    def remember(self, given: tuple[torch.Tensor, ...], states: Sequence[torch.Tensor]) -> Before:
        """What the program is called with: its inputs, then copies of those in ``copied``."""
        kept = self._pick_kept(given)
        geometries: tuple[_Geometry, ...] = ()
        if self._open:
            geometries = tuple((given[n].shape, given[n].stride()) for n in self._open)
        return Before(kept, given[self._count :], versions_of(kept), states, {}, geometries)

    def sources_of(self, before: Before) -> list[torch.Tensor]:
        """What gradients flow to, as ``uses.sources`` lists it."""
        kept = zip(self.kept, before.kept, strict=True)
        return [*(before.stands.get(n, each) for n, each in kept), *before.copies]

    def versions(self, before: Before, saved: Sequence[Saved]) -> list[int]:
        """How often what was saved for the backward had been changed by then: results are new.
        Of an input that the program itself writes to, no version is right."""
        inputs = dict(zip(self.kept, before.versions, strict=True))
        return [inputs.get(each.input, -2) if isinstance(each, SavedInput) else 0 for each in saved]

    def states(self) -> list[torch.Tensor]:
        """Of the random generators, from which the program draws."""
        return random_states()

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
        self, given: Mapping[int, torch.Tensor], geometries: Mapping[int, _Geometry]
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

    def _zeros(self, n: int, value: torch.Tensor, geometry: _Geometry) -> torch.Tensor:
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


def inputs_of_gradients(joint: JointGraph) -> frozenset[int]:
    """The inputs, by placeholder, whose values gradients of any order depend on."""
    written = {mutation.input for mutation in joint.program.mutations}
    placeholders = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
    read = ancestors(joint.program.results[joint.result_count :])
    # What the joint graph is given besides, the program computes itself.
    known = {node for node in placeholders if COMPUTED_FROM in node.meta}
    read |= {each for node in known & read for each in node.meta[COMPUTED_FROM]}
    read -= known
    # An input that is written to without gradients has no part in the first gradients, but
    # autograd follows what becomes of it in the second.
    return frozenset(
        n
        for n, node in enumerate(placeholders)
        if not isinstance(joint.program.inputs[n], ConstantInput)  # the program has its own
        and (
            joint.tells_apart
            or node in read
            or (n in written and joint.gradients[n] is not None)
            or node.meta.get("is_anchor")  # through it gradients are differentiated
        )
    )


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
