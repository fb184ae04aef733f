"""Outputs that gradients of other results pass on their way.

In eager an output from which another was computed lies on the way of the other's gradients: its
own, asked after the call, includes what comes from there, and hooks on it see and change that. A
compiled backward goes past it, and its gradients are the same as long as nobody looks; where
somebody does, the backward is run in stages, each of which ends at such outputs.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import fx

from plait_fx_passes.aten_graph import Computed, InputView, OutputSource, ResultView
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.training.flow import passing
from plait_fx_passes.training.provenance import Provenance
from plait_utils import dataclass

_WITHIN = "one call within it returns a value and others that are computed from it"
SHOWN = "shown_outputs"
"""In a program's metadata: the outputs that its caller sees, where these are not all."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Output ``output`` of a program, which gradients of ``tangents`` pass, by their order.

    ``nodes`` of the program, by name, return the very tensor; after node ``written`` nothing writes
    to it.
    """

    output: int
    tangents: frozenset[int]
    nodes: tuple[str, ...]
    written: str


def passed_outputs(
    gm: fx.GraphModule,
    leaves: Sequence[object],
    sources: Sequence[OutputSource],
    results: Mapping[int, torch.Tensor],
    written: Collection[int],
    provenance: Provenance,
) -> tuple[Passed, ...]:
    """The outputs that gradients of the program's results pass.

    Args:
        gm: the program.
        leaves: what it returned, flat.
        sources: what its caller makes of each.
        results: those that get gradients, by position, in the order of their tangents.
        written: the inputs that it writes to.
        provenance: noted while it ran.

    Raises:
        AtenTraceError: it writes to such an output once others were computed from it, or what
            returns it cannot be told.
    """
    shown = gm.meta.get(SHOWN)
    found: list[tuple[int, torch.Tensor]] = []
    seen: set[int] = set()
    for position, (leaf, source) in enumerate(zip(leaves, sources, strict=True)):
        is_own = isinstance(source, (Computed, ResultView, InputView)) and id(leaf) not in seen
        if not is_own or (shown is not None and position not in shown):
            continue
        seen.add(id(leaf))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.grad_fn is not None:
            found.append((position, leaf))
    if len(results) < 2 and all(isinstance(sources[n], Computed) for n, _ in found):
        return ()
    through = passing(list(results.values()), [leaf for _, leaf in found])
    if not any(through):
        return ()
    if _writes_uncounted(gm):
        raise AtenTraceError("it uses .data, and returns what other results are computed from")
    tensors = list(results.values())
    returning = provenance.by_tensor()
    passed: list[Passed] = []
    returned: list[list[fx.Node]] = []
    for (position, leaf), tangents in zip(found, through, strict=True):
        source = sources[position]
        if not tangents:
            continue
        nodes = returning.get(id(leaf), [])
        alone = [node for node in nodes if provenance.values[node] is leaf]
        final = provenance.last(leaf, alone)
        if final is None or (isinstance(source, InputView) and source.input in written):
            raise AtenTraceError("it returns, and writes to, what other results are computed from")
        if not all(node in alone or _is_taken_apart(node) for node in nodes):
            raise AtenTraceError(_WITHIN)
        passed.append(Passed(position, tangents, tuple(map(str, alone)), final.name))
        returned.append(alone)
    told = provenance.computed_from(returned)
    left: list[Passed] = []
    for number, each in enumerate(passed):
        if all(told(tensors[n]) >> number & 1 for n in each.tangents):
            left.append(each)
        elif not any(map(_is_gradient, returned[number])):
            raise AtenTraceError(_WITHIN)
    return tuple(left)


def _is_gradient(node: fx.Node) -> bool:
    """Whether it is one of several gradients that one pass computes, maybe from each other: as
    outputs they are apart."""
    return any(each.target is torch.autograd.grad for each in node.all_input_nodes)


def _writes_uncounted(gm: fx.GraphModule) -> bool:
    """Whether it may write to memory without autograd's knowledge."""
    return any(node.target is getattr and node.args[1] == "data" for node in gm.graph.nodes)


def _is_taken_apart(node: fx.Node) -> bool:
    """Whether nodes that follow use elements of what it returns, and not that itself."""
    return all(user.op == "output" or user.target is operator.getitem for user in node.users)
