"""Applying decompositions to a graph that is already recorded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Argument, map_arg
from torch.utils._pytree import tree_map

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.record.aliases import new_base, with_layout
from plait_fx_passes.record.guards import below_autograd
from plait_fx_passes.record.inputs import NothingToLift
from plait_fx_passes.record.outputs import separate
from plait_fx_passes.record.recorder import Recorder, Rule
from plait_fx_passes.record.rules import composite_rules
from plait_utils.interrupts import stop_if_interrupted, uninterrupted


@uninterrupted
def decompose(graph: AtenGraph, table: Mapping[OpOverload, Rule]) -> AtenGraph:
    """Replace operators by what their decompositions record.

    Args:
        graph: not changed.
        table: decompositions by overload; each may decline with ``NotImplemented``.

    Raises:
        AtenTraceError: a decomposition raised or returned another shape or dtype.
    """
    mode = graph.fake_mode
    if mode is None:
        return graph
    recorder = Recorder(mode, NothingToLift(), composite_rules(), table)
    values: dict[fx.Node, object] = {}
    with below_autograd():
        for node in graph.graph.nodes:
            stop_if_interrupted()
            recorder.meta = {key: value for key, value in node.meta.items() if key != "val"}
            if node.op == "placeholder":
                recorder.placeholder(node.name, node.meta["val"])
                values[node] = node.meta["val"]
            elif node.op == "call_function":
                values[node] = _replayed(recorder, node, values, table)
        results = [
            with_layout(
                recorder, recorder.node_of(cast(FakeTensor, values[node])), node.meta["val"]
            )
            for node in graph.results
        ]
        separate(recorder, results, graph.mutations)
    recorder.graph.output(cast(Argument, tuple(results)))
    return graph.replace_graph(recorder.graph)


def _replayed(
    recorder: Recorder,
    node: fx.Node,
    values: dict[fx.Node, object],
    table: Mapping[OpOverload, Rule],
) -> object:
    def value_of(used: fx.Node) -> Argument:
        return cast(Argument, values[used])

    args = cast("tuple[object, ...]", map_arg(node.args, value_of))
    kwargs = cast("dict[str, object]", map_arg(node.kwargs, value_of))
    if node.target is operator.getitem:
        return cast("tuple[object, ...]", args[0])[cast(int, args[1])]
    assert isinstance(node.target, OpOverload)
    if node.target in table:
        try:
            with recorder:
                return node.target(*args, **kwargs)
        except Exception as error:
            raise AtenTraceError(
                f"the decomposition of {node.target} failed: {type(error).__name__}: {error}",
                where=recorder.where,
                hint="leave the operator out of the table",
            ) from error
    return _copied(recorder, node, args, kwargs)


def _copied(
    recorder: Recorder, node: fx.Node, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    def to_node(value: object) -> object:
        return recorder.node_of(value) if isinstance(value, torch.Tensor) else value

    value = node.meta["val"]
    target = cast("Callable[..., object]", node.target)
    fresh = recorder.emit(
        target, tree_map(to_node, args), tree_map(to_node, kwargs), value, node.name
    )
    if isinstance(value, FakeTensor):
        recorder.bind(value, new_base(value, fresh.meta, node=fresh))
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            if isinstance(part, FakeTensor):
                recorder.bind(part, new_base(part, fresh.meta, producer=(fresh, index)))
    return value
