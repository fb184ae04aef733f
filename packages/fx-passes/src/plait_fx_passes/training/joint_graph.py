"""The joint graph: one functional ATen graph that computes results and their gradients."""

from __future__ import annotations

import dataclasses

from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.aten_graph import AtenGraph, Computed, UserInput
from plait_fx_passes.op_info import op_info
from plait_fx_passes.training.flow import Flow
from plait_fx_passes.training.passed import Passed
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class JointGraph:
    """A program's forward and backward in one graph.

    The graph's placeholders are those of ``program``, then one *tangent* for each differentiable
    result; its results are those of the program, then one *gradient* for each input that needs
    one and gets one.

    ``program`` says what the program's inputs, outputs and mutations are, as for inference; its
    own graph is the joint graph, so that only its surroundings are meant. ``tangents`` holds,
    for each tangent, the position of the result that it belongs to; ``gradients``, for each of
    the program's placeholders, the position of its gradient among the results, or None.
    ``random`` says whether the program draws random numbers. ``flow`` says which gradients each
    tangent leads to, and what a second backward would meet. ``begins_without_gradients`` says that
    the program is called with gradients off, and turns them on by itself; ``tells_apart`` that its
    gradients are those of the graph only where all tangents are given: else a function of its own
    may do something else. ``saved`` lists the inputs that autograd saves, as
    they are in the end, each with the tangents, by their order, of which gradients ask for them;
    ``saved_results`` the results of which it saves the memory, in the same way, and None where
    torch does not tell. ``read`` lists the inputs that its backward reads, whether it saves them
    or a function of the user's keeps them. ``looked_at`` has the inputs of which autograd saves
    views, and whether it saves the input itself, too: a view stays in the memory that an input
    leaves where its ``.data`` is set.
    ``passed`` lists the outputs that gradients of other results pass. ``is_hidden`` says that
    programs alone see the results, as of a part of a graph: all belong to one node.
    """

    program: AtenGraph
    result_count: int
    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]
    random: bool
    flow: Flow
    begins_without_gradients: bool = False
    tells_apart: bool = False
    saved: tuple[tuple[int, frozenset[int]], ...] = ()
    saved_results: tuple[tuple[int, frozenset[int]], ...] | None = None
    read: tuple[tuple[int, frozenset[int]], ...] = ()
    looked_at: tuple[tuple[int, bool], ...] = ()
    passed: tuple[Passed, ...] = ()
    is_hidden: bool = False

    @property
    def graph(self) -> fx.Graph:
        return self.program.graph

    @property
    def input_count(self) -> int:
        """How many placeholders the program has, without tangents."""
        return len(self.program.inputs)

    def flat(self) -> AtenGraph:
        """The joint graph as a program of its own, for passes, printers and verifiers.

        Its inputs are placeholders in order, its outputs the results. Nothing is written back, but
        where there are no tangents and so no more than the program.
        """
        count = self.input_count + len(self.tangents)
        results = len(self.program.results)
        return AtenGraph(
            graph=self.graph,
            inputs=tuple(UserInput(index) for index in range(count)),
            outputs=tuple(Computed(index) for index in range(results)),
            mutations=() if self.tangents else self.program.mutations,
        )

    def hidden(self) -> JointGraph:
        """The same where programs alone see the results."""
        return dataclasses.replace(self, passed=(), is_hidden=True)

    def replace_graph(self, graph: fx.Graph) -> JointGraph:
        """The same around another graph with equal placeholders and results."""
        return dataclasses.replace(self, program=self.program.replace_graph(graph))


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers."""
    return isinstance(node.target, OpOverload) and op_info(node.target).random
