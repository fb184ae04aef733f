"""What is drawn of a graph: boxes with words, and edges between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.op_info import OpKind, op_info
from plait_fx_passes.printer import format_target, format_value
from plait_utils import dataclass

_SHOWN_SCALARS = (bool, int, float, str)
_LONGEST = 34


@dataclass(frozen=True, slots=True)
class Box:
    """A node: its kind decides the colour, ``title`` and ``type`` are its two lines, ``note`` is
    shown when it is pointed at."""

    name: str
    kind: str
    title: str
    type: str
    note: str


@dataclass(frozen=True, slots=True)
class Boxes:
    """All boxes in the graph's order, and edges from producer to user by their positions."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]


COLOURS = {
    "input": ("#dbeafe", "#2563eb"),
    "call": ("#f8fafc", "#64748b"),
    "view": ("#f1f5f9", "#cbd5e1"),
    "matrix product": ("#fef3c7", "#d97706"),
    "random": ("#fce7f3", "#db2777"),
    "write": ("#fee2e2", "#dc2626"),
    "result": ("#dcfce7", "#16a34a"),
    "tangent": ("#ede9fe", "#7c3aed"),
    "gradient": ("#ddd6fe", "#5b21b6"),
}
"""Fill and border of each kind of box."""

_PRODUCTS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "attention",
    "linear",
    "matmul",
    "conv",
)


def boxes_of(nodes: Sequence[fx.Node], roles: Mapping[fx.Node, str]) -> Boxes:
    """The boxes of a graph.

    Args:
        nodes: in order; the output is not drawn, what it returns is a result.
        roles: kinds of nodes that the graph does not tell, such as tangents and gradients.
    """
    returned = {each for node in nodes if node.op == "output" for each in node.all_input_nodes}
    kinds = {each: "result" for each in returned if each.op not in ("placeholder", "get_attr")}
    kinds |= roles
    positions: dict[fx.Node, int] = {}
    boxes: list[Box] = []
    edges: dict[tuple[int, int], None] = {}
    for node in nodes:
        if node.op == "output":
            continue
        positions[node] = len(boxes)
        for used in node.all_input_nodes:
            edges[positions[used], len(boxes)] = None
        boxes.append(_box(node, kinds.get(node) or _kind(node)))
    return Boxes(tuple(boxes), tuple(edges))


def _box(node: fx.Node, kind: str) -> Box:
    value = node.meta.get("val", node.meta.get("example_value"))
    described = "" if value is None else _shortened(format_value(value))
    title = node.name if node.op == "placeholder" else _shortened(_name(node) + _scalars(node))
    return Box(node.name, kind, title, described, str(node.meta.get("source_line") or node.name))


def _name(node: fx.Node) -> str:
    if node.op == "call_function":
        target = node.target
        name = format_target(target) if isinstance(target, OpOverload) else ""
        return name.removeprefix("aten.") or getattr(target, "__name__", str(target))
    return str(node.target) if node.op != "call_method" else f".{node.target}"


def _scalars(node: fx.Node) -> str:
    """The arguments that are plain values."""
    shown = [_plain(each) for each in node.args]
    shown += [f"{name}={_plain(value)}" for name, value in node.kwargs.items() if _plain(value)]
    kept = [each for each in shown if each]
    return f"({', '.join(kept)})" if kept else ""


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)) and value:
        inside = [_plain(each) for each in value]
        return f"[{', '.join(inside)}]" if all(inside) else ""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return repr(value) if isinstance(value, _SHOWN_SCALARS) else ""


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _kind(node: fx.Node) -> str:
    if node.op in ("placeholder", "get_attr"):
        return "input"
    if isinstance(node.target, OpOverload):
        info = op_info(node.target)
        if info.random:
            return "random"
        if info.kind is OpKind.VIEW:
            return "view"
        if info.kind in (OpKind.MUTATING, OpKind.METADATA):
            return "write"
    name = _name(node).split("(")[0].split(".")[0] or _name(node)
    if any(name == each or name.endswith(each) for each in _PRODUCTS) or "attention" in name:
        return "matrix product"
    return "write" if name.endswith("_") and not name.endswith("__") else "call"
