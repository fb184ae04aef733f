"""Joint graphs whose attention keeps no matrix of weights between forward and backward."""

from __future__ import annotations

import torch
from torch import fx

from plait_fx_passes.aten_graph import copy_graph
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.reading import ancestors
from plait_utils import dataclass

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class KeptAttention:
    """A joint graph whose attention keeps no matrix of weights.

    Attributes:
        joint: the graph; the one that was given where nothing was found.
        count: how many attentions it has that were changed.
        left: why other softmaxes between products stay what they are, each with the user's line,
            if that is known.
    """

    joint: JointGraph
    count: int
    left: tuple[tuple[str, str | None], ...]


def keep_attention(
    joint: JointGraph, *, everywhere: bool = False, deterministic: bool = False
) -> KeptAttention:
    """Let the backward of attention compute its scores again.

    Args:
        joint: forward and backward in one graph, which is not changed.
        everywhere: also where less is saved and more computed: on CPUs, which have no kernels for
            what the backward then computes, and in float32, of which products are faster.
        deterministic: leave attention of which pairs are added to computed places, in any order.
    """
    if not any(_is_softmax(node, everywhere) for node in joint.graph.nodes):
        return KeptAttention(joint, 0, ())
    from plait_fx_passes.training.attention.matching import LeftError, attention_around
    from plait_fx_passes.training.attention.rewriting import compute_again

    graph = copy_graph(joint.graph)
    late = _late(joint.replace_graph(graph))
    left: list[tuple[str, str | None]] = []
    count = 0
    for node in list(graph.nodes):
        if not _is_softmax(node, everywhere) or node in late:
            continue
        try:
            attention = attention_around(node, late)
            if attention is None:
                continue
            attention.check(everywhere, deterministic)
        except LeftError as reason:
            left.append((str(reason), node.meta.get("source_line")))
        else:
            compute_again(attention)
            count += 1
    if not count:
        return KeptAttention(joint, 0, tuple(left))
    graph.lint()
    return KeptAttention(joint.replace_graph(graph), count, tuple(left))


def _is_softmax(node: fx.Node, everywhere: bool) -> bool:
    """Whether a node is a softmax where the backward is to compute scores again."""
    if node.target is not aten._softmax.default:
        return False
    return everywhere or node.meta["val"].device.type == "cuda"


def _late(joint: JointGraph) -> set[fx.Node]:
    """What only the backward computes, but for what checkpoints compute again."""
    forward = ancestors(joint.program.results[: joint.result_count])
    found = set(joint.graph.find_nodes(op="placeholder")[joint.input_count :])
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in forward:
            continue
        if "recomputed" not in node.meta or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found
