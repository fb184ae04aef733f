"""Hand-written attention as calls of ``scaled_dot_product_attention``, before it is recorded.

In a recorded graph a backward reads the weights, so attention is one operator there only if it was
one before. What is called gives the same values but for rounding, in rows too that masks leave
nothing of: NaN where -inf is added or filled in, the mean of all values where a finite number is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from plait_fx_passes.attention.bodies import annotate, checkpointed
from plait_fx_passes.attention.calls import call_of
from plait_fx_passes.attention.kernels import check_kernel, form_of
from plait_fx_passes.attention.masks import Masks
from plait_fx_passes.attention.reading import Attention, NotAttentionError, Places, attention_of
from plait_fx_passes.attention.writing import Writer
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """A program that calls attention.

    Attributes:
        program: a copy of the program; itself where nothing was found.
        forms: how often each form was found: ``plain``, ``causal``, ``masked`` by bools,
            ``biased`` by what is added, each with ``-dropout`` where weights are dropped.
        left: why other products of a softmax stay what they are, each with the user's line, if
            that is known.
    """

    program: fx.GraphModule
    forms: Mapping[str, int]
    left: tuple[tuple[str, str | None], ...]


def fuse_attention(
    program: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor] | None = None,
    *,
    everywhere: bool = False,
    dropout: bool = False,
) -> FusedAttention:
    """Make hand-written attention one call each, where a fused kernel takes it.

    Args:
        program: a torch-level graph, with the bodies of its checkpoints. It is not changed.
        example_inputs: a real or fake tensor for each placeholder; not needed where nodes have fake
            tensors in ``meta["val"]``, as plait's tracer and ``torch.export`` give them.
        everywhere: also where less memory is all that is gained: on CPUs, and on GPUs in float32
            but under a causal mask, or without a mask or gradients.
        dropout: whether the call may drop weights, by other random numbers than the program
            would draw.

    A program that differentiates what it has differentiated is left alone: the kernels have no
    second derivatives.
    """
    if _is_differentiated_again(program):
        return FusedAttention(program, {}, ())
    source = program
    if example_inputs is not None:
        source = fx.GraphModule(program, _copied(program.graph))
        annotate(source, example_inputs)
    found = _Found(everywhere, dropout)
    bodies = _fused_bodies(source, found)
    if not list(found.within(source.graph)) and not bodies:
        return FusedAttention(program, {}, tuple(found.left))
    graph = _copied(source.graph)
    _write(graph, found)
    made = fx.GraphModule(source, graph)
    for name, body in bodies.items():
        setattr(made, name, body)
    return FusedAttention(made, dict(found.forms), tuple(found.left))


def _fused_bodies(program: fx.GraphModule, found: _Found) -> dict[str, fx.GraphModule]:
    """The bodies of checkpoints in which there is attention, with calls of it."""
    made = {}
    for name, body, values in checkpointed(program):
        if not any(_is_softmax(node) for node in body.graph.nodes):
            continue
        copy = fx.GraphModule(body, _copied(body.graph))
        annotate(copy, values)
        if list(found.within(copy.graph)):
            _write(copy.graph, found)
            copy.recompile()
            made[name] = copy
    return made


def _write(graph: fx.Graph, found: _Found) -> None:
    """Replace the attention in a graph."""
    masks = Masks()
    for attention, form in _Found(found.everywhere, found.dropout).within(graph):
        Writer(attention, form, masks).write()
        found.forms[form + ("-dropout" if attention.dropout else "")] += 1


def _is_softmax(node: fx.Node) -> bool:
    call = call_of(node)
    return call is not None and call.name == "softmax"


def _copied(graph: fx.Graph) -> fx.Graph:
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


class _Found:
    """Finds the attention that is to be called, and notes why other is not."""

    def __init__(self, everywhere: bool, dropout: bool) -> None:
        self.everywhere = everywhere
        self.dropout = dropout
        self.forms: Counter[str] = Counter()
        self.left: list[tuple[str, str | None]] = []

    def within(self, graph: fx.Graph) -> Iterator[tuple[Attention, str]]:
        """Each with its form, which may be replaced at once."""
        places, masks = Places.in_graph(graph), Masks()
        for node in places.nodes:
            try:
                attention = attention_of(node, places)
                if attention is None:
                    continue
                form = form_of(attention, masks)
                check_kernel(attention, form, everywhere=self.everywhere, dropout=self.dropout)
            except NotAttentionError as reason:
                self.left.append((str(reason), node.meta.get("source_line")))
            else:
                yield attention, form


def _is_differentiated_again(program: fx.GraphModule) -> bool:
    for node in program.graph.nodes:
        module = getattr(node.target, "__module__", None) or ""
        if module.startswith("torch.autograd.forward_ad"):
            return True
        if node.target is torch.autograd.grad:
            again = node.args[4] if len(node.args) > 4 else node.kwargs.get("create_graph", False)
            if again is not False:
                return True
    return False
