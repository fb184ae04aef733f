"""The first gradients of a program as a program of its own, which can be differentiated.

It computes what the program computes, from inputs that are not written to, and asks autograd for
gradients of that which autograd follows in turn. Recorded and compiled as any program that
differentiates inside, it is what a backward under ``create_graph=True`` runs; its own gradients
are the second ones, and its own gradient program gives the third.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.amp import autocast_mode
from torch.fx.node import Argument, map_arg
from torch.utils._pytree import tree_leaves

from plait_fx_passes.aten_graph import (
    AttributeInput,
    Computed,
    ConstantInput,
    SyntheticBase,
    UserInput,
)
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.known import Known
from plait_fx_passes.training.returned import shown_results
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Uses:
    """What gradients depend on of a program's inputs, by position.

    ``kept`` are inputs whose values they depend on, ``copied`` those among them that the program
    writes to, of which copies are given. Of all others only the geometry matters. ``autocast`` is
    what the program runs under: devices with the dtypes to which they cast.
    """

    kept: tuple[int, ...]
    copied: tuple[int, ...]
    autocast: tuple[tuple[str, torch.dtype], ...]

    @property
    def sources(self) -> tuple[int, ...]:
        """The inputs that are given, in order."""
        return (*self.kept, *self.copied)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One kind of backward: the tangents that are given, by the results that they belong to, and
    which of the inputs that are given, and then of these, need gradients themselves. It may end at
    outputs that gradients pass, some of which are ``given``, behind the inputs."""

    tangents: tuple[int, ...]
    follows: tuple[bool, ...]
    cuts: tuple[int, ...] = ()
    given: tuple[bool, ...] = ()

    @property
    def begun(self) -> list[int]:
        """The outputs that are given."""
        return [n for n, is_given in zip(self.cuts, self.given, strict=True) if is_given]


@dataclass(frozen=True, slots=True)
class GradientProgram:
    """``program`` takes the inputs in use, outputs at which it begins anew, tangents, and what else
    is known, in this order, and returns the gradients of the inputs ``gradients``, and then of the
    outputs at which its gradients end, each a tensor or None.

    ``known`` says what is known, which the program does not use: its joint graph may.
    """

    program: fx.GraphModule
    examples: tuple[torch.Tensor, ...]
    gradients: tuple[int, ...]
    known: Known


def gradient_program(
    joint: JointGraph,
    program: fx.GraphModule,
    uses: Uses,
    wanted: Wanted,
    saved: Sequence[fx.Node],
) -> GradientProgram | None:
    """The torch-level program of a kind of backward; None where it cannot be written as one.

    Args:
        joint: the program's joint graph.
        program: the torch-level program, which begins anew where the backward ends.
        uses: what gradients depend on.
        wanted: the kind.
        saved: nodes of the joint graph whose values are given, too.
    """
    gradients = tuple(n for n, place in enumerate(joint.gradients) if place is not None)
    if not gradients or not _can_be_inlined(joint, program):
        return None
    writer = _Writer(joint, program, uses)
    values = _values(joint, uses, wanted)
    named = [
        *(("input", writer.inputs, n) for n in uses.sources),
        *(("passed", writer.passed, n) for n in wanted.begun),
        *(("tangent", writer.tangents, n) for n in wanted.tangents),
    ]
    for (name, kind, n), value, follows in zip(named, values, wanted.follows, strict=True):
        kind[n] = writer.placeholder(f"{name}_{n}", value, follows)
    first = len(values)
    for number, node in enumerate(saved):
        values.append(fake_of(node.meta["val"].fake_mode, node.meta["val"]))
        writer.known(number, values[-1])
    graph = writer.finish(wanted, gradients)
    inputs = joint.graph.find_nodes(op="placeholder")
    held = [inputs[n] for n in uses.sources]
    held += [joint.program.results[result_of(joint, n)] for n in wanted.begun]
    known = Known(
        dict(enumerate(held)),
        {first + number: node for number, node in enumerate(saved)},
    )
    return GradientProgram(fx.GraphModule(program, graph), tuple(values), gradients, known)


def result_of(joint: JointGraph, place: int) -> int:
    """The result that an output is which gradients pass."""
    source = joint.program.outputs[joint.passed[place].output]
    assert isinstance(source, Computed), "views are not given"
    return source.result


def stand_in(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
) -> torch.Tensor:
    """Zeros in the place of an input whose values no gradient depends on."""
    reach = [(each - 1) * step for each, step in zip(size, stride, strict=True)]
    count = 0 if 0 in size else 1 + sum(reach)
    memory = torch.zeros(count, dtype=dtype, device=device)
    return memory.as_strided(tuple(size), tuple(stride)).requires_grad_(requires_grad)


def own_view(tensor: torch.Tensor) -> torch.Tensor:
    """A view of which gradients are asked for, also where the tensor itself needs none: then its
    gradients depend on nothing that is followed."""
    made = tensor.view_as(tensor)
    return made if made.requires_grad else made.requires_grad_()


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """What autograd takes the tensor for a view of; itself if of nothing."""
    return tensor if tensor._base is None else tensor._base


def _can_be_inlined(joint: JointGraph, program: fx.GraphModule) -> bool:
    """Whether the nodes of the program say all: it begins with gradients, modules that it calls
    read no parameters, and what it reaches for is what it names."""
    if joint.begins_without_gradients:
        return False
    called = (node.target for node in program.graph.find_nodes(op="call_module"))
    if any(_has_tensors(program.get_submodule(str(each))) for each in called):
        return False
    named = {id(_attribute(program, node)) for node in program.graph.find_nodes(op="get_attr")}
    for source in joint.program.inputs:
        if isinstance(source, AttributeInput) and id(source.tensor) not in named:
            return False
        if isinstance(source, SyntheticBase):
            return False
    return True


def _attribute(program: fx.GraphModule, node: fx.Node) -> object:
    found: object = program
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _has_tensors(module: torch.nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _values(joint: JointGraph, uses: Uses, wanted: Wanted) -> list[torch.Tensor]:
    """A fake tensor for each placeholder, which autograd does not know."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    nodes = [placeholders[n] for n in uses.sources]
    nodes += [joint.program.results[result_of(joint, n)] for n in wanted.begun]
    nodes += [placeholders[joint.input_count + joint.tangents.index(n)] for n in wanted.tangents]
    values = [cast(Any, node.meta["val"]) for node in nodes]
    return [fake_of(value.fake_mode, value) for value in values]


class _Writer:
    """Writes the graph of a gradient program."""

    def __init__(self, joint: JointGraph, program: fx.GraphModule, uses: Uses) -> None:
        self._joint = joint
        self._program = program
        self._uses = uses
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self.inputs: dict[int, fx.Node] = {}
        self.passed: dict[int, fx.Node] = {}
        self.tangents: dict[int, fx.Node] = {}

    def placeholder(self, name: str, value: torch.Tensor, follows: bool) -> fx.Node:
        """For what is given."""
        node = self._graph.placeholder(name)
        node.meta = {"val": value, "requires_grad": follows}
        return node

    def known(self, number: int, value: torch.Tensor) -> None:
        """For a value that this program has no use for."""
        self._graph.placeholder(f"known_{number}").meta = {"val": value, "requires_grad": False}

    def finish(self, wanted: Wanted, gradients: Sequence[int]) -> fx.Graph:
        """The graph, once all placeholders are there."""
        sources = self._sources(gradients)
        given = dict(sources)
        for n in sources:
            if n not in self._uses.kept:  # the program may write to it
                given[n] = self._graph.call_method("clone", (given[n],))
        returned = self._inlined(given)
        cuts: tuple[fx.Node, ...] = ()
        if wanted.cuts:
            returned, cuts = cast("tuple[Argument, tuple[fx.Node, ...]]", returned)
        results = self._results(returned, given)
        outputs = [results[n] for n in wanted.tangents]
        asked = [*(sources[n] for n in gradients), *cuts]
        found = self._graph.call_function(
            torch.autograd.grad,
            (outputs, asked, [self.tangents[n] for n in wanted.tangents]),
            {"create_graph": True, "allow_unused": True},
        )
        count = range(len(asked))
        parts = [self._graph.call_function(operator.getitem, (found, n)) for n in count]
        self._graph.output(tuple(parts))
        return self._graph

    def _sources(self, gradients: Collection[int]) -> dict[int, fx.Node]:
        """What gradients are asked for, and the other inputs but the program's own constants."""
        found = {}
        placeholders = self._joint.graph.find_nodes(op="placeholder")
        for n, (node, kind) in enumerate(
            zip(placeholders, self._joint.program.inputs, strict=False)
        ):
            if isinstance(kind, ConstantInput):
                continue
            source = self.inputs.get(n)
            if source is None:
                value = node.meta["val"]
                geometry = (tuple(value.shape), tuple(value.stride()))
                options = (value.dtype, value.device, n in gradients)
                found[n] = self._graph.call_function(stand_in, (*geometry, *options))
            elif n in gradients:  # a view of its own, though the same tensor be given twice
                found[n] = self._graph.call_function(own_view, (source,))
            else:
                found[n] = source
        return found

    def _inlined(self, given: Mapping[int, fx.Node]) -> Argument:
        """The program's nodes on these inputs; what it returns."""
        modes = [self._entered(device, dtype) for device, dtype in self._uses.autocast]
        by_argument, by_tensor = {}, {}
        for n, node in given.items():
            source = self._joint.program.inputs[n]
            if isinstance(source, UserInput):
                by_argument[source.index] = node
            elif isinstance(source, AttributeInput):
                by_tensor[id(source.tensor)] = node
        returned: Argument = None
        arguments = iter(
            [*(by_argument[n] for n in range(len(by_argument))), *self.passed.values()]
        )
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                self._copies[node] = next(arguments)
            elif node.op == "get_attr" and id(_attribute(self._program, node)) in by_tensor:
                self._copies[node] = by_tensor[id(_attribute(self._program, node))]
            elif node.op == "output":
                returned = map_arg(node.args[0], self._copies.__getitem__)
            else:
                self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)
        for mode in reversed(modes):
            self._graph.call_function(autocast_mode._exit_autocast, (mode,))
        return returned

    def _entered(self, device: str, dtype: torch.dtype) -> fx.Node:
        arguments = (device, dtype, True, torch.is_autocast_cache_enabled())
        return self._graph.call_function(autocast_mode._enter_autocast, arguments)

    def _leaves(self, returned: Argument) -> list[fx.Node]:
        """Nodes for the program's outputs, which may be parts of what nodes return."""
        found = tree_leaves(returned)
        values = [each.meta.get("val") for each in found if isinstance(each, fx.Node)]
        if all(isinstance(value, torch.Tensor) for value in values):
            return found
        parts = self._graph.call_function(tree_leaves, (returned,))
        places = range(len(self._joint.program.outputs))
        return [self._graph.call_function(operator.getitem, (parts, n)) for n in places]

    def _results(self, returned: Argument, given: Mapping[int, fx.Node]) -> dict[int, fx.Node]:
        """The program's tensor for each result of the joint graph."""
        program = self._joint.program
        found: dict[int, fx.Node] = {}
        leaves = self._leaves(returned)
        for result, (position, is_view) in shown_results(program.outputs).items():
            leaf = leaves[position]
            found[result] = self._graph.call_function(base_of, (leaf,)) if is_view else leaf
        for mutation in program.mutations:
            found[mutation.result] = given[mutation.input]
        return found
