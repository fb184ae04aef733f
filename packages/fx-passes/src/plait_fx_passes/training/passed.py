"""Outputs that gradients of other results pass on their way.

In eager an output from which another was computed lies on the way of the other's gradients: its
own, asked after the call, includes what comes from there, and hooks on it see and change that. A
compiled backward goes past it, and its gradients are the same as long as nobody looks; where
somebody does, the backward is run in stages, each of which ends at such outputs.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import TypeGuard

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from plait_fx_passes.aten_graph import Computed, InputView, OutputSource, ResultView
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.training.flow import passing
from plait_utils import dataclass

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


class Versions:
    """After which node of a program the memory of tensors had been written to how often."""

    def __init__(self) -> None:
        self.values: Mapping[fx.Node, object] = {}
        self._first: dict[tuple[int, int], fx.Node] = {}
        self._order: dict[fx.Node, int] = {}

    def look(self, node: fx.Node, values: Mapping[fx.Node, object]) -> None:
        """Note what a node has returned, and what it was given."""
        self.values = values  # keeps all of them, so that identities last
        self._order[node] = len(self._order)
        for each in (node, *node.all_input_nodes):
            value = values[each]
            if _has_version(value):
                self._first.setdefault(_memory_now(value), node)

    def last(self, tensor: torch.Tensor, nodes: Sequence[fx.Node]) -> fx.Node | None:
        """The node after which it was as it is, of those that returned it, or wrote to its memory;
        None where that cannot be told."""
        written = self._first.get(_memory_now(tensor)) if _has_version(tensor) else None
        if written is None or not nodes:
            return None
        return max(written, nodes[0], key=self._order.__getitem__)

    def by_tensor(self) -> dict[int, list[fx.Node]]:
        """The nodes that returned each tensor, by its identity, alone or in a container."""
        found: dict[int, list[fx.Node]] = {}
        for node, value in self.values.items():
            for each in {id(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)}:
                found.setdefault(each, []).append(node)
        return found


def passed_outputs(
    gm: fx.GraphModule,
    leaves: Sequence[object],
    sources: Sequence[OutputSource],
    results: Sequence[torch.Tensor],
    written: Collection[int],
    versions: Versions,
) -> tuple[Passed, ...]:
    """The outputs that gradients of the program's results pass.

    Args:
        gm: the program.
        leaves: what it returned, flat.
        sources: what its caller makes of each.
        results: those that get gradients.
        written: the inputs that it writes to.
        versions: noted while it ran.

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
    if len(results) < 2 and not any(isinstance(sources[n], InputView) for n, _ in found):
        return ()
    through = passing(results, [leaf for _, leaf in found])
    if not any(through):
        return ()
    if _writes_uncounted(gm):
        raise AtenTraceError("it uses .data, and returns what other results are computed from")
    returning = versions.by_tensor()
    passed = []
    for (position, leaf), tangents in zip(found, through, strict=True):
        source = sources[position]
        if not tangents:
            continue
        nodes = returning.get(id(leaf), [])
        final = versions.last(leaf, nodes)
        if final is None or (isinstance(source, InputView) and source.input in written):
            raise AtenTraceError("it returns, and writes to, what other results are computed from")
        alone = [node for node in nodes if versions.values[node] is leaf]
        if not all(node in alone or _is_taken_apart(node) for node in nodes):
            raise AtenTraceError("it returns what other results are computed from, within others")
        names = tuple(node.name for node in alone)
        passed.append(Passed(position, tangents, names, final.name))
    return tuple(passed)


def _has_version(value: object) -> TypeGuard[torch.Tensor]:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not value.is_inference()


def _memory_now(tensor: torch.Tensor) -> tuple[int, int]:
    """The memory of a tensor, and how often autograd knows it to have been written to."""
    return tensor.untyped_storage()._cdata, tensor._version


def _writes_uncounted(gm: fx.GraphModule) -> bool:
    """Whether it may write to memory without autograd's knowledge."""
    return any(node.target is getattr and node.args[1] == "data" for node in gm.graph.nodes)


def _is_taken_apart(node: fx.Node) -> bool:
    """Whether nodes that follow use elements of what it returns, and not that itself."""
    return all(user.op == "output" or user.target is operator.getitem for user in node.users)
