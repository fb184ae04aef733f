"""Graphs in a folder, as text that people read and that loads again.

For a graph ``name`` there are ``name.py``, its nodes as Python; ``name.json``, what its inputs and
outputs are, and the user's lines; and ``name.constants.pt``, the tensors that belong to it.
Loading runs none of that: the text is parsed (``tools/text.py`` says what it may name), the tensors
are read by ``torch.load(weights_only=True)``. To run a loaded graph is to call torch's operators on
one's own inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import treespec_dumps, treespec_loads

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import GraphTextError
from plait_fx_passes.plain_data import SURROUNDINGS
from plait_fx_passes.tools.facts import Codec, InputFacts, facts_of
from plait_fx_passes.tools.text import read_graph, write_graph
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.partition import Partition
from plait_fx_passes.verifier import recompute
from plait_utils import dataclass
from plait_utils.fake import FakeMode

Dumpable: TypeAlias = AtenGraph | JointGraph | Partition | fx.GraphModule
_FORMAT = 1
PARTITION = ("saved", "kept", "saved_bytes", "operations")
_JOINT = (
    *("result_count", "tangents", "gradients", "random", "flow"),
    *("begins_without_gradients", "tells_apart", "saved", "saved_results", "read", "looked_at"),
    "passed",
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A graph of a folder, and what its inputs were."""

    graph: Dumpable
    inputs: tuple[InputFacts, ...]

    def make_inputs(self, seed: int = 0) -> list[torch.Tensor]:
        """Tensors like the inputs, with random values between the bounds that were seen.

        Raises:
            GraphTextError: an input has symbolic sizes.
        """
        generator = torch.Generator().manual_seed(seed)
        return [each.make(generator) for each in self.inputs]


def dump(
    folder: Path | str,
    graphs: Mapping[str, Dumpable],
    examples: Mapping[str, Sequence[object]] | None = None,
) -> Path:
    """Write graphs to a folder, which is made.

    Args:
        folder: where.
        graphs: by name; a partition becomes ``name.forward`` and ``name.backward``. Plain graph
            modules must not call submodules.
        examples: by name, real inputs, whose bounds are noted.

    Raises:
        GraphTextError: a graph has something that no text says.
        OSError: the folder cannot be written.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    seen = examples or {}
    for name, graph in graphs.items():
        if isinstance(graph, Partition):
            facts = {each: Codec({}).encode(getattr(graph, each)) for each in PARTITION}
            _write_json(place, name, {"kind": "partition", **facts})
            for part, aten in (("forward", graph.forward), ("backward", graph.backward)):
                _dump_one(place, f"{name}.{part}", aten, seen.get(f"{name}.{part}", ()))
        else:
            _dump_one(place, name, graph, seen.get(name, ()))
    return place


def to_text(
    graph: AtenGraph | JointGraph | fx.GraphModule,
    name: str = "program",
    examples: Sequence[object] = (),
) -> tuple[str, dict[str, Any], dict[str, torch.Tensor]]:
    """A graph as text, what stands beside it as JSON, and the tensors that belong to it.

    Raises:
        GraphTextError: the graph has something that no text says.
    """
    constants: dict[str, torch.Tensor] = {}
    codec = Codec(constants)
    nodes = graph.graph
    found: dict[str, Any] = {"kind": "module"}
    if isinstance(graph, fx.GraphModule):
        for node in nodes.find_nodes(op="get_attr"):
            constants[str(node.target)] = _attribute(graph, str(node.target))
    else:
        program = graph.program if isinstance(graph, JointGraph) else graph
        spec = program.output_spec
        found = {"kind": "aten", "spec": None if spec is None else spec_text(spec)}
        found |= {each: codec.encode(getattr(program, each)) for each in SURROUNDINGS}
    if isinstance(graph, JointGraph):
        found |= {"kind": "joint", **{each: codec.encode(getattr(graph, each)) for each in _JOINT}}
    placeholders = nodes.find_nodes(op="placeholder")
    values = [node.meta.get("val", node.meta.get("example_value")) for node in placeholders]
    facts = facts_of([node.name for node in placeholders], values, examples)
    found["facts"] = [each.to_json() for each in facts]
    lines = {
        node.name: node.meta["source_line"] for node in nodes.nodes if "source_line" in node.meta
    }
    found["lines"] = {node: str(line) for node, line in lines.items()}
    text = write_graph(nodes, "".join(c if c.isalnum() else "_" for c in name))
    return text, found, constants


def _dump_one(
    place: Path,
    name: str,
    graph: AtenGraph | JointGraph | fx.GraphModule,
    examples: Sequence[object],
) -> None:
    text, found, constants = to_text(graph, name, examples)
    header = '"""A graph; it is read, not run: see plait_fx_passes.tools.load."""\n\n'
    imports = "import operator\n\nimport torch\nfrom math import inf, nan\n\n\n"
    (place / f"{name}.py").write_text(header + imports + text, encoding="utf-8")
    _write_json(place, name, found)
    if constants:
        plain = {key: tensor.detach() for key, tensor in constants.items()}
        torch.save(plain, place / f"{name}.constants.pt")


def _write_json(place: Path, name: str, found: Mapping[str, Any]) -> None:
    text = json.dumps({"format": _FORMAT, **found}, indent=1)
    (place / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _attribute(module: torch.nn.Module, name: str) -> torch.Tensor:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, torch.Tensor):
        raise GraphTextError(f"the attribute {name} is no tensor")
    return found


def spec_text(spec: Any) -> str:
    """The structure of what a program returns. Raises GraphTextError where it has no text."""
    try:
        return treespec_dumps(spec)
    except NotImplementedError as error:
        raise GraphTextError(f"the program returns what has no text: {error}") from error


def load(folder: Path | str) -> dict[str, Loaded]:
    """The graphs of a folder, by name, as they were given to :func:`dump`.

    Values of ATen graphs' nodes (``meta["val"]``) are computed anew from those of the inputs.

    Raises:
        GraphTextError: a file is not what :func:`dump` writes.
        OSError: the folder cannot be read.
    """
    place = Path(folder)
    found = {path.stem: _read_json(path) for path in sorted(place.glob("*.json"))}
    if not found:
        raise GraphTextError(f"there are no graphs in {place}")
    loaded = {
        name: _load_one(place, name, facts)
        for name, facts in found.items()
        if facts["kind"] != "partition"
    }
    for name, facts in found.items():
        if facts["kind"] == "partition":
            forward, backward = loaded.pop(f"{name}.forward"), loaded.pop(f"{name}.backward")
            graphs = cast(AtenGraph, forward.graph), cast(AtenGraph, backward.graph)
            rest = {each: Codec({}).decode(facts[each]) for each in PARTITION}
            loaded[name] = Loaded(Partition(*graphs, **rest), forward.inputs)
    return loaded


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise GraphTextError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise GraphTextError(f"{path} is not of format {_FORMAT}")
    return found


def _load_one(place: Path, name: str, found: dict[str, Any]) -> Loaded:
    path = place / f"{name}.constants.pt"
    constants = torch.load(path, weights_only=True) if path.exists() else {}
    text = (place / f"{name}.py").read_text(encoding="utf-8")
    return from_text(text, found, constants)


def from_text(
    text: str, found: Mapping[str, Any], constants: Mapping[str, torch.Tensor] | None = None
) -> Loaded:
    """The graph that :func:`to_text` wrote. Raises GraphTextError where it is none."""
    constants = dict(constants or {})
    module = read_graph(text, constants)
    for node in module.graph.nodes:
        if node.name in found["lines"]:
            node.meta["source_line"] = found["lines"][node.name]
    facts = tuple(InputFacts.from_json(each) for each in found["facts"])
    _annotate(module.graph, facts, calls=found["kind"] != "module")
    if found["kind"] == "module":
        return Loaded(module, facts)
    codec = Codec(constants)
    spec = None if found["spec"] is None else treespec_loads(found["spec"])
    surroundings = {each: codec.decode(found[each]) for each in SURROUNDINGS}
    program = AtenGraph(module.graph, output_spec=spec, **surroundings)
    if found["kind"] == "aten":
        return Loaded(program, facts)
    return Loaded(
        JointGraph(program, **{each: codec.decode(found[each]) for each in _JOINT}), facts
    )


def _annotate(graph: fx.Graph, facts: Sequence[InputFacts], *, calls: bool) -> None:
    """Give nodes fake values: inputs those of their facts, calls what they compute."""
    mode: FakeTensorMode = FakeMode()
    known = {each.name: each for each in facts if each.is_static}
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in known:
            with mode:
                node.meta["val"] = known[node.name].empty()
            node.meta["requires_grad"] = known[node.name].requires_grad
        elif calls and node.op == "call_function":
            node.meta["val"] = recompute(mode, node)
