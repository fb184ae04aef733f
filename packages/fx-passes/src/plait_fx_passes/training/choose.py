"""Chooses what the forward saves, by minimum cuts between what it computes and what uses it.

Each value of the forward that the backward depends on is saved, computed again from other values,
or not needed. The cut that separates the forward from its uses in the backward pays the bytes of
each value that it saves and the operations of each that is computed again, weighed against each
other (T. Chen et al., *Training deep nets with sublinear memory cost*, 2016, pose the trade; that
it is a cut is H. He and R. Zou, *functorch: partitioner*, 2022).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set

import torch
from torch import fx

from plait_fx_passes.aliasing import is_view, storage_root
from plait_fx_passes.op_info import raises_for_data
from plait_fx_passes.training.asking import Asking
from plait_fx_passes.training.compared import compared
from plait_fx_passes.training.costs import (
    CHEAP_KINDS,
    NEVER,
    Cost,
    Kind,
    recompute_cost,
    tensor_bytes,
)
from plait_fx_passes.training.cuts import INFINITE, Network
from plait_fx_passes.training.held import held_by_caller, readable, whole_results
from plait_fx_passes.training.joint_graph import JointGraph, is_random
from plait_fx_passes.training.reading import ancestors
from plait_utils import dataclass

_BERNOULLI = (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli.default)


@dataclass(frozen=True, slots=True)
class PartitionCosts:
    """What the default partition weighs.

    ``operations_per_byte``: how many operations computing a value again may cost for each byte
    that need not be saved: what a core computes while it moves a byte to memory and back.
    ``longest_chain``: of how many recomputed nodes, one after the other, a value may depend.
    """

    operations_per_byte: int = 16
    longest_chain: int = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """What is saved, in the order of the graph, and what that costs.

    ``saved_bytes`` leaves out what costs nothing to save: inputs of the program, and results that
    the backward itself uses. ``operations`` are those of the recomputed nodes.
    """

    saved: tuple[fx.Node, ...]
    saved_bytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class _Corner:
    """A choice as a point: the bytes that it saves and what it computes again, weighed."""

    choice: Choice
    bytes: int
    work: int


class Values:
    """The values of a joint graph's forward that its backward depends on.

    A value is a node that is no view: views are taken again. What ``uncopied`` names is saved as
    the tensor that the caller holds, as autograd does: inputs that are not written to and results
    that the caller gets, where the backward itself uses them. Anything else is memory that only
    the backward sees, so that the program or its caller cannot change it in between.
    """

    def __init__(self, joint: JointGraph) -> None:
        graph = joint.graph
        results = joint.program.results
        placeholders = graph.find_nodes(op="placeholder")
        self.random = [node for node in graph.nodes if is_random(node)]
        """Drawn in the forward, used or not: the generator is to go on as in eager."""
        inputs = placeholders[: joint.input_count]
        self.gradients = results[joint.result_count :]
        self.late = _dependents(graph, placeholders[joint.input_count :])
        """What tangents are needed for, and so is in the backward in any case."""
        used = ancestors(results) | self.late
        self.checks = [node for node in graph.nodes if raises_for_data(node) and node not in used]
        """Called in the forward for the errors alone that they may raise."""
        own = [*results[: joint.result_count], *self.random, *self.checks]
        self.forward = ancestors([*own, *inputs])
        """What the program computes for its own results, its random numbers and its errors."""
        self.forward |= {n for n in graph.nodes if _is_part(n) and n.args[0] in self.forward}
        self.order = {node: n for n, node in enumerate(graph.nodes)}
        again = [node for node in graph.nodes if "recomputed" in node.meta]
        self.masks = {node for node in self.random if _is_mask(node)}
        """Drawn zeros and ones, which are saved as booleans."""
        self.again = _dependents(graph, again) - self.late - self.forward
        """What checkpoints compute again, and what is computed from that: never saved."""
        late = self.late & ancestors(self.gradients)
        wanted = {gradient for gradient in self.gradients if gradient not in late}
        wanted |= {each for node in late for each in node.all_input_nodes if each not in late}
        self.needed = {storage_root(node) for node in wanted}
        """What the backward's own nodes use."""
        self.whole = whole_results(joint)
        """What results of the program hold, with their positions."""
        self.held = held_by_caller(joint, self.whole)
        tangents = placeholders[joint.input_count :]
        asking = Asking(graph, tangents, self.gradients, self.forward)
        may_read = readable(joint)
        self.uncopied = {
            node
            for node in self.held
            if (read := asking.read.get(node, 0)) and not read & ~may_read.get(node, 0)
        }
        self.nodes = self.sorted({storage_root(n) for n in ancestors(self.needed)})
        """All that the needed values are computed from, in the order of the graph."""
        self.operands = {node: _operands(node) for node in self.nodes}
        self.barred = {
            node
            for node in self.forward.intersection(self.nodes)
            if any(
                each in self.uncopied and asking.all.get(node, 0) & ~may_read.get(each, 0)
                for each in self.operands[node]
            )
        }
        self.barred |= compared(graph, self.forward, self.order).intersection(self.nodes)
        """What is never computed again: the caller may have written to what it is computed from,
        and gradients ask for it that in eager do not read that; or it is compared with what was
        computed of it."""
        self.bytes = {node: self._bytes(node) for node in self.nodes}
        self.costs = {node: self._cost(node) for node in self.nodes}
        self.stored = _stored(graph, self.forward)
        """What the forward holds in memory whether it is saved or not."""

    def sorted(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        """The nodes in the order of the graph."""
        return sorted(nodes, key=self.order.__getitem__)

    def _bytes(self, node: fx.Node) -> int | None:
        """What saving the value costs; None for one that cannot be saved."""
        value = node.meta["val"]
        if isinstance(value, (tuple, list)) or node in self.again:
            return None
        if node in self.uncopied:
            return 0
        size = tensor_bytes(value)
        return size // value.dtype.itemsize if node in self.masks else size

    def _cost(self, node: fx.Node) -> Cost:
        """Of computing the value again, in the backward."""
        cost = recompute_cost(node)
        if node in self.again:
            return Cost(Kind.FREE, 0)
        if node in self.forward or cost.kind in NEVER:
            return cost
        return Cost(cost.kind, 0)  # it is computed once, wherever that is

    def whole_cost(self, node: fx.Node) -> Cost:
        """Of computing the value again, with the operator of which it is one result."""
        return self.costs[self.operands[node][0]] if _is_part(node) else self.costs[node]

    def kept_whole(self) -> Choice:
        """Every value that the backward uses is saved."""
        stops = self.needed & self.forward
        return self.choice(self._reached(stops, stop_at=self.forward))

    def choice(self, saved: set[fx.Node]) -> Choice:
        """What of ``saved`` is really needed, and what that costs."""
        used, again = self._walk(saved)
        return Choice(
            tuple(self.sorted(used)),
            sum(self.bytes[node] or 0 for node in used),
            sum(self.costs[node].operations for node in again),
        )

    def _reached(self, start: set[fx.Node], stop_at: set[fx.Node]) -> set[fx.Node]:
        """What is met first of ``stop_at``, from all that is needed."""
        found = set(start)
        seen: set[fx.Node] = set()
        waiting = [node for node in self.needed if node not in stop_at]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            found |= {each for each in self.operands[node] if each in stop_at}
            waiting += [each for each in self.operands[node] if each not in stop_at]
        return found

    def _walk(self, saved: set[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
        """Which of ``saved`` the needed values are computed from, and what is computed again."""
        used: set[fx.Node] = set()
        again: set[fx.Node] = set()
        waiting = list(self.needed)
        while waiting:
            node = waiting.pop()
            if node in saved:
                used.add(node)
            elif node not in again:
                again.add(node)
                waiting += self.operands[node]
        return used, again

    def balanced(self, costs: PartitionCosts) -> Choice:
        """The cheapest where an operation counts as a part of a byte, and only what fused loops
        compute is computed again, in chains that are not too long."""
        barred = self.barred | {
            node
            for node in self.nodes
            if node in self.forward and self.costs[node].kind not in CHEAP_KINDS
        }
        work = {node: cost.operations for node, cost in self.costs.items()}
        while True:
            saved = self._cut(costs.operations_per_byte, work, 1, barred, self.stored)
            _, again = self._walk(saved)
            long = self._ends_of_chains(again, costs.longest_chain) - barred
            if not long:
                return self.choice(saved)
            barred |= long

    def _ends_of_chains(self, again: set[fx.Node], longest: int) -> set[fx.Node]:
        """Where chains of recomputed values become longer than ``longest``."""
        depths: dict[fx.Node, int] = {}
        found: set[fx.Node] = set()
        for node in self.nodes:
            if node not in again:
                continue
            depths[node] = max((depths.get(each, 0) for each in self.operands[node]), default=0)
            if node in self.forward and self.bytes[node] is not None:
                depths[node] += 1
                if depths[node] % (longest + 1) == 0:
                    found.add(node)
        return found

    def within(self, budget: float) -> Choice:
        """The most that is saved within a budget: 0 for the least bytes, 1 for all.

        Between, the budget is a part of the bytes that keeping all saves beyond the least. The
        cheapest cuts for every weight of an operation are the corners of a convex curve of bytes
        and operations; a search by slopes finds the last corner within the budget. Operations
        weigh a little more the later they are, so that equal layers are corners of their own.
        """
        work = {
            node: cost.operations * (8 * len(self.nodes) + position)
            for position, (node, cost) in enumerate(self.costs.items())
        }
        most = self._weighed(self.kept_whole(), work)
        if budget >= 1:
            return most.choice
        least = self._weighed(self.choice(self._cut(1 + sum(work.values()), work, 1)), work)
        limit = least.bytes + int(budget * (most.bytes - least.bytes))
        while True:
            gain, spared = least.work - most.work, most.bytes - least.bytes
            if gain <= 0 or spared <= 0:
                return least.choice
            found = self._weighed(self.choice(self._cut(gain, work, spared)), work)
            line = most.bytes * gain + most.work * spared
            if found.bytes * gain + found.work * spared >= line:
                return least.choice
            if found.bytes <= limit:
                least = found
            else:
                most = found

    def _weighed(self, choice: Choice, work: Mapping[fx.Node, int]) -> _Corner:
        _, again = self._walk(set(choice.saved))
        return _Corner(choice, choice.saved_bytes, sum(work[node] for node in again))

    def _cut(
        self,
        byte: int,
        work: Mapping[fx.Node, int],
        operation: int = 1,
        barred: Set[fx.Node] = frozenset(),
        stored: Set[fx.Node] = frozenset(),
    ) -> set[fx.Node]:
        """What the cheapest cut saves, at these prices of a byte and of an operation, where
        ``work`` says how many operations computing each value again takes, the values in
        ``barred`` and :attr:`barred` are not computed again, and those in ``stored`` cost a
        quarter less: a saved value is written, held and read again, and these are written in any
        case."""
        kept = {n for n in self.nodes if n in barred or self.costs[n].kind in NEVER}
        kept |= self.uncopied | self.barred
        fixed = kept & self.needed
        prices = {n: INFINITE if (b := self.bytes[n]) is None else b * byte for n in self.nodes}
        prices |= {
            n: prices[n] - (self.bytes[n] or 0) * byte // 4 for n in self.nodes if n in stored
        }
        return fixed | self._cut_others(prices, {n: w * operation for n, w in work.items()}, kept)

    def _cut_others(
        self, prices: Mapping[fx.Node, int], work: Mapping[fx.Node, int], kept: set[fx.Node]
    ) -> set[fx.Node]:
        """The cut through what is left when all that is saved in any case is.

        Each value has a vertex that is on the sink's side where the backward has the value, and,
        if it can be computed again and is not needed for certain, one more that is there where it
        computes the value again.
        """
        nodes = [node for node in self.nodes if node not in kept or node not in self.needed]
        again: dict[fx.Node, int] = {}
        there: dict[fx.Node, int] = {}
        count = 0
        for node in nodes:
            if node not in kept:
                again[node] = count
                count += 1
            if node not in self.needed:
                whole = self.bytes[node] is None and node in again
                there[node] = again[node] if whole else count
                count += not whole
        network = Network(count)
        for node in nodes:
            if node not in again:
                network.from_source[there[node]] = prices[node]
                continue
            network.from_source[again[node]] = work[node]
            if node in self.needed:
                network.to_sink[again[node]] = prices[node]
            elif there[node] != again[node]:
                network.connect(again[node], there[node], prices[node])
            for each in self.operands[node]:
                if each in there:
                    network.connect(there[each], again[node], INFINITE)
        side = network.sink_side()
        return {
            node
            for node in nodes
            if self.bytes[node] is not None
            and (node in self.needed or side[there[node]])
            and not (node in again and side[again[node]])
        }


def _stored(graph: fx.Graph, forward: set[fx.Node]) -> set[fx.Node]:
    """What operators of the forward that are no part of fused loops read and make."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or node not in forward or is_view(node):
            continue
        whole = node.args[0] if _is_part(node) else node
        assert isinstance(whole, fx.Node)
        if recompute_cost(whole).kind not in CHEAP_KINDS:
            found |= {node, *map(storage_root, node.all_input_nodes)}
    return found


def _dependents(graph: fx.Graph, start: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes and all that is computed from them."""
    found = set(start)
    for node in graph.nodes:
        if node.op == "call_function" and any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _is_mask(node: fx.Node) -> bool:
    """Whether the node draws zeros and ones, as dropout does."""
    return node.target in _BERNOULLI and node.meta["val"].dtype.is_floating_point


def _is_part(node: fx.Node) -> bool:
    """Whether the node takes one of several results of an operator."""
    return node.target is operator.getitem


def _operands(node: fx.Node) -> tuple[fx.Node, ...]:
    """The values that a value is computed from, each once."""
    assert not is_view(node)
    return tuple(dict.fromkeys(map(storage_root, node.all_input_nodes)))
