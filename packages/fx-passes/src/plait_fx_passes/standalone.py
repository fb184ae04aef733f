"""Passes for any FX graph module: in goes a module, out comes a module.

For graphs from a tracer, ``make_fx`` or ``torch.export``, and as a pass before a backend.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import torch
from torch import fx
from torch.utils._pytree import tree_unflatten

from plait_fx_passes.aten_graph import (
    AtenGraph,
    AttributeInput,
    Computed,
    ConstantInput,
    Geometry,
    InputItself,
    InputView,
    Literal,
    OutputSource,
    Repeated,
    ResultView,
    SyntheticBase,
    UserInput,
    ViewStep,
)
from plait_fx_passes.errors import PassError
from plait_fx_passes.freezing import with_frozen_attributes, with_held_values
from plait_fx_passes.module_sizes import with_computed_sizes, without_numbers
from plait_fx_passes.open_sizes import OpenGraph
from plait_fx_passes.passes.manager import DEFAULT_PASSES, run_passes
from plait_fx_passes.to_functional import to_aten

if TYPE_CHECKING:
    from plait_fx_passes.passes.base import Pass

aten = torch.ops.aten


def optimize(
    module: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    passes: Sequence[Pass] = DEFAULT_PASSES,
    *,
    freeze: bool = False,
) -> fx.GraphModule:
    """The module's program after passes over its ATen graph.

    Args:
        module: not changed; its parameters and buffers are shared with the result.
        example_inputs: a real or fake tensor for each placeholder; of fake ones some sizes may be
            symbolic, and an argument may be such a size or an integer.
        passes: what to run, in order.
        freeze: take the module's parameters and buffers, where the program does not write to them,
            for constants, as `FOLDING_PASSES` want. What follows from them alone is computed now
            and held by the result: it does not see what becomes of the parameters later.

    Returns:
        A module that is called as ``module`` is, for tensors of the same sizes, strides and dtypes
        that need no gradients: its graph does not say what ``detach()`` and ``no_grad()`` keep from
        autograd. Where sizes are symbolic, it is for those for which all holds that their
        environment has noted of them. What the program writes to its inputs it writes at its end;
        results share memory as before.

    Raises:
        AtenTraceError, PassError: the program cannot be recorded, or a pass failed; also where the
            program goes backward inside.
    """
    inputs = [node.name for node in module.graph.find_nodes(op="placeholder")]
    program, tensors, numbers = without_numbers(module, example_inputs)
    graph = to_aten(program, tensors)
    if freeze:
        graph = with_held_values(run_passes(with_frozen_attributes(graph), passes))
    else:
        graph = run_passes(graph, passes)
    made = as_module(graph, inputs, numbers)
    made.graph.set_codegen(module.graph._codegen)  # how exported modules take their arguments
    made.recompile()
    return made


def as_module(
    graph: AtenGraph, inputs: Sequence[str], numbers: Mapping[str, object] = MappingProxyType({})
) -> fx.GraphModule:
    """The graph with all that surrounds it as one module, which takes inputs of these names; some
    are the ``numbers`` that the graph was recorded with, sizes as a rule.

    Raises PassError for programs that differentiate.
    """
    if graph.differentiates or graph.spent or graph.made_leaves or graph.adrift:
        raise PassError("a program that goes backward inside is not one graph without gradients")
    return _Writer(graph, inputs, numbers).module()


class _Writer:
    """Writes a graph and its surroundings as one graph."""

    def __init__(
        self, source: AtenGraph, inputs: Sequence[str], numbers: Mapping[str, object]
    ) -> None:
        self._source = source
        mode = source.fake_mode
        is_open = mode is not None and mode.shape_env is not None
        self._graph: fx.Graph = OpenGraph() if is_open else fx.Graph()
        arguments = {name: self._graph.placeholder(name) for name in inputs}
        self._arguments = [node for name, node in arguments.items() if name not in numbers]
        self._numbers = [(arguments[name], value) for name, value in numbers.items()]
        self._tensors: dict[str, torch.Tensor] = {}
        self._inputs: list[fx.Node] = []
        for node, each in zip(source.placeholders, source.inputs, strict=True):
            self._inputs.append(self._input(node, each))

    def module(self) -> fx.GraphModule:
        source = self._source
        graph = source.runnable()
        known = dict(zip(graph.find_nodes(op="placeholder"), self._inputs, strict=True))
        self._graph.graph_copy(graph, known)
        returned = cast("Sequence[fx.Node]", graph.output_node().args[0])
        results = [known[node] for node in returned]
        for written in source.mutations:
            target = self._inputs[written.input]
            if results[written.result] is target:  # it was written there
                continue
            if not written.counted:
                target = self._call(aten.detach.default, target)
            self._call(aten.copy_.default, target, results[written.result])
        outputs: list[object] = []
        for each in source.outputs:
            outputs.append(self._output(each, results, outputs))
        for changed in source.metadata_mutations:
            place = self._strided(changed.input, changed.geometry)
            self._graph.call_method("as_strided_", cast("tuple[fx.node.Argument, ...]", place))
        spec = source.output_spec
        built = tuple(outputs) if spec is None else tree_unflatten(outputs, spec)
        self._graph.output(cast("fx.node.Argument", built))
        told = zip(self._inputs, source.placeholders, source.inputs, strict=True)
        given = [(at, node.meta["val"]) for at, node, each in told if isinstance(each, UserInput)]
        sized = with_computed_sizes(self._graph, [*self._numbers, *given])
        return fx.GraphModule(self._tensors, sized)

    def _input(self, node: fx.Node, source: object) -> fx.Node:
        if isinstance(source, UserInput):
            found = self._arguments[source.index]
        elif isinstance(source, SyntheticBase):
            geometry = Geometry((source.numel,), (1,), source.offset_from, node.meta["val"].dtype)
            found = self._call(aten.as_strided.default, *self._strided(source.of, geometry))
        else:
            assert isinstance(source, (AttributeInput, ConstantInput))
            self._tensors[source.name] = source.tensor
            found = self._graph.create_node("get_attr", source.name)
        found.meta = dict(node.meta)
        return found

    def _strided(self, index: int, geometry: Geometry) -> tuple[fx.Node, object, object, fx.Node]:
        """Arguments of ``as_strided``: the caller's tensor may begin anywhere in its memory."""
        owner = self._inputs[index]
        begin = self._graph.call_method("storage_offset", (owner,))
        start = self._graph.call_function(operator.add, (begin, geometry.offset))
        return owner, geometry.size, geometry.stride, start

    def _output(
        self, source: OutputSource, results: Sequence[fx.Node], built: Sequence[object]
    ) -> object:
        if isinstance(source, Literal):
            return source.value
        if isinstance(source, Repeated):
            return built[source.output]
        if isinstance(source, InputItself):
            return self._inputs[source.input]
        if isinstance(source, Computed):
            result = results[source.result]
            return self._graph.call_method("item", (result,)) if source.is_number else result
        if isinstance(source, InputView):
            if source.steps is not None:
                return self._stepped(self._inputs[source.input], source.steps)
            return self._call(
                aten.as_strided.default, *self._strided(source.input, source.geometry)
            )
        assert isinstance(source, ResultView)
        base = results[source.result]
        if source.steps is not None:
            return self._stepped(base, source.steps)
        begin = cast(torch.Tensor, base.meta["val"]).storage_offset()
        place = source.geometry
        return self._call(
            aten.as_strided.default, base, place.size, place.stride, begin + place.offset
        )

    def _stepped(self, base: fx.Node, steps: Sequence[ViewStep]) -> fx.Node:
        for step in steps:
            kwargs = dict(cast("Sequence[tuple[str, fx.node.Argument]]", step.kwargs))
            args = cast("tuple[fx.node.Argument, ...]", step.args)
            base = self._graph.call_function(step.op, (base, *args), kwargs)
        return base

    def _call(self, op: torch._ops.OpOverload, *args: object) -> fx.Node:
        return self._graph.call_function(op, cast("tuple[fx.node.Argument, ...]", args))
