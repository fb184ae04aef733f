"""What is known of a joint graph and its partition, as JSON; and the graphs, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._pytree import treespec_loads

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import GraphTextError
from plait_fx_passes.plain_data import SURROUNDINGS, Codec
from plait_fx_passes.training.places import Place
from plait_fx_passes.training.plan import Graphs, TrainingPlan
from plait_fx_passes.training.tangents import Tangent

if TYPE_CHECKING:
    from plait_fx_passes.training.joint_graph import JointGraph
    from plait_fx_passes.training.places import Places

_PLAIN = (
    *("result_count", "tangents", "gradients", "random", "flow", "begins_without_gradients"),
    *(
        "tells_apart",
        "passed",
        "is_hidden",
        "saved",
        "forward_count",
        "backward_count",
        "used",
        "unsaved",
        "looked_at",
        "unclear",
    ),
    *("open_inputs", "lines", "scratch", "communicates", "apart", "autocast"),
)
_PLACES = ("unwritten", "written", "results")


def write_surroundings(graph: AtenGraph) -> dict[str, Any]:
    """What is around a graph, as JSON.

    Raises GraphTextError for symbolic sizes, and for tensors that belong to the graph.
    """
    constants: dict[str, torch.Tensor] = {}
    codec = Codec(constants)
    found = {each: codec.encode(getattr(graph, each)) for each in SURROUNDINGS}
    if constants:
        raise GraphTextError("tensors belong to the graph")
    spec = None
    if graph.output_spec is not None:
        from plait_fx_passes.tools.dumping import spec_text

        spec = spec_text(graph.output_spec)
    return {**found, "spec": spec, "results": len(graph.results)}


def read_surroundings(found: Mapping[str, Any]) -> AtenGraph:
    """What is around a graph; of the graph itself it has the numbers of placeholders and results.

    Raises GraphTextError where that is no such JSON.
    """
    codec = Codec({})
    fields = {each: codec.decode(found[each]) for each in SURROUNDINGS}
    graph = fx.Graph()
    for number in range(len(fields["inputs"])):
        graph.placeholder(f"input_{number}")
    graph.output((None,) * int(found["results"]))
    spec = None if found["spec"] is None else treespec_loads(found["spec"])
    return AtenGraph(graph, output_spec=spec, **fields)


def write_plan(plan: TrainingPlan) -> dict[str, Any]:
    """What is known of a partitioned joint graph, as JSON.

    Raises GraphTextError for symbolic sizes, and for tensors that belong to the program.
    """
    if plan.open_inputs or any(each.strides is not None for each in plan.shapes):
        raise GraphTextError("sizes are symbolic")
    codec = Codec({})
    found = {each: codec.encode(getattr(plan, each)) for each in _PLAIN}
    found |= {each: _write_places(getattr(plan, each)) for each in _PLACES}
    shapes = [[codec.encode(s.stride), codec.encode(s.dtype), str(s.device)] for s in plan.shapes]
    return {**found, "shapes": shapes, "program": write_surroundings(plan.program)}


def read_plan(found: Mapping[str, Any]) -> TrainingPlan:
    """What :func:`write_plan` has written. Raises GraphTextError where that is no such JSON."""
    codec = Codec({})
    fields = {each: codec.decode(found[each]) for each in _PLAIN}
    fields |= {each: _read_places(found[each]) for each in _PLACES}
    shapes = tuple(
        Tangent(codec.decode(stride), codec.decode(dtype), torch.device(device))
        for stride, dtype, device in found["shapes"]
    )
    return TrainingPlan(program=read_surroundings(found["program"]), shapes=shapes, **fields)


def write_graphs(graphs: Graphs) -> dict[str, Any]:
    """The graphs as text.

    Raises GraphTextError for tensors that belong to them, and for what no text says.
    """
    from plait_fx_passes.tools.dumping import PARTITION, to_text
    from plait_fx_passes.tools.facts import Codec as WholeCodec

    joint, parts, program = graphs
    whole: dict[str, AtenGraph | JointGraph | fx.GraphModule] = {
        "joint": joint,
        "program": program,
        "forward": parts.forward,
        "backward": parts.backward,
    }
    found: dict[str, Any] = {}
    for name, graph in whole.items():
        text, facts, constants = to_text(graph)
        if constants:
            raise GraphTextError("tensors belong to the graph")
        found[name] = [text, facts]
    codec = WholeCodec({})
    return {**found, "parts": {each: codec.encode(getattr(parts, each)) for each in PARTITION}}


def read_graphs(found: Mapping[str, Any]) -> Graphs:
    """The graphs that :func:`write_graphs` has written. Raises GraphTextError for other text."""
    from plait_fx_passes.tools.dumping import PARTITION, from_text
    from plait_fx_passes.tools.facts import Codec as WholeCodec
    from plait_fx_passes.training.partition import Partition

    names = ("joint", "program", "forward", "backward")
    joint, program, forward, backward = (from_text(*found[name]).graph for name in names)
    codec = WholeCodec({})
    rest = {each: codec.decode(found["parts"][each]) for each in PARTITION}
    parts = Partition(forward, backward, **rest)  # type: ignore[arg-type]  # as the text says
    return Graphs(joint, parts, program)  # type: ignore[arg-type]  # as the text says


def _write_places(places: Places) -> list[Any]:
    return [[each.position, sorted(each.tangents), each.line] for each in places]


def _read_places(found: Any) -> Places:
    return tuple(Place(position, frozenset(tangents), line) for position, tangents, line in found)
