"""Which definitions become one kernel.

Definitions are visited in dependency order; each group first tries to join the groups
that compute what it reads, those that save most bytes first, then groups that read the
same buffers at the same points. Every attempt is recorded with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from heapq import heapify, heappop, heappush
from itertools import pairwise

from plait_ir_lowering import Buffer, Graph, Load, Pointwise, ReductionKind, Scatter, as_index
from plait_scheduler.checks import in_order
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import points
from plait_scheduler.groups import Group, Relation, group_of, merge, relate
from plait_scheduler.nodes import (
    draws_apart,
    draws_random_numbers,
    final_reads,
    node_of,
    reads_of,
    work_of,
)
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.sizes import buffer_bytes, estimate
from plait_utils import dataclass

_MUCH = 4
"""How many times as many bytes another fusion saves that a legal one is left out for."""

_SIBLING_TRIES = 4
"""With how many earlier readers of a buffer a later one tries to share a kernel."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What runs as one step: a fused group, or an external call (no group)."""

    places: tuple[int, ...]
    """The definitions of the graph that it carries out, in order."""
    group: Group | None


def fuse(
    graph: Graph,
    options: SchedulerOptions,
    log: DecisionLog,
    sums: frozenset[str] = frozenset(),
) -> list[Unit]:
    """The units that carry out `graph`, in an order that respects dependencies; `sums` are
    reductions that multiply matrices."""
    fuel, taken = log.fuel, len(log.decisions)
    units = _fused(_Fuser(graph, options, log, sums))
    if sum(len(unit.places) for unit in units) == len(graph.definitions):
        return units
    # Groups that span others led around the search for cycles: anew, looking everywhere.
    log.fuel, log.decisions[taken:] = fuel, []
    return _fused(_Fuser(graph, options, log, sums, everywhere=True))


def _fused(fuser: _Fuser) -> list[Unit]:
    options = fuser.options
    if options.fuse_pointwise or options.fuse_reductions:
        for place in range(len(fuser.graph.definitions)):
            fuser.join_producers(place)
    if options.fuse_siblings:
        fuser.join_siblings()
    return fuser.ordered()


@dataclass(slots=True)
class _Fuser:
    """The state of one fusion run."""

    graph: Graph
    options: SchedulerOptions
    log: DecisionLog
    sums: frozenset[str]
    everywhere: bool = False
    """Whether cycles are looked for behind both groups, too: a path may lead there and back through
    a group that begins before them."""
    buffers: dict[str, Buffer] = field(init=False)
    producer: dict[str, int] = field(init=False)
    """The place of the definition of each buffer."""
    successors: list[list[int]] = field(init=False)
    """For each definition the places of those that read it."""
    readers: dict[str, list[int]] = field(init=False)
    leader: list[int] = field(init=False)
    """For each definition the first place of its group."""
    groups: dict[int, Group | None] = field(init=False)
    """Groups by first place; None for external calls."""
    kept: frozenset[str] = field(init=False)
    """Buffers that must exist whatever is fused."""
    starts: dict[int, str] = field(init=False)
    """Copies of inputs that scatters start from: definitions that no sibling joins."""

    def __post_init__(self) -> None:
        definitions = self.graph.definitions
        self.buffers = {b.name: b for b in self.graph.inputs}
        self.producer = {}
        for place, definition in enumerate(definitions):
            for buffer in definition.buffers:
                self.buffers[buffer.name] = buffer
                self.producer[buffer.name] = place
        self.successors = [[] for _ in definitions]
        self.readers = {name: [] for name in self.buffers}
        for place, definition in enumerate(definitions):
            for name in reads_of(definition):
                self.readers[name].append(place)
                if name in self.producer:
                    self.successors[self.producer[name]].append(place)
        random = [place for place, d in enumerate(definitions) if draws_random_numbers(d)]
        for first, second in pairwise(random):  # they draw in the order of the graph
            self.successors[first].append(second)
        for first, second in in_order(definitions):
            self.successors[first].append(second)
        self.leader = list(range(len(definitions)))
        self.groups = {}
        for place, definition in enumerate(definitions):
            node = node_of(place, definition)
            self.groups[place] = None if node is None else group_of(node)
        self.kept = frozenset(final_reads(self.graph))
        self.starts = self._starts()

    def _starts(self) -> dict[int, str]:
        """The copies of inputs that are written back which scatters start from, with the inputs.

        They stay by themselves, since none is made where the scatter can be in the input.
        """
        written = (
            {name for name, _ in self.graph.mutations} if self.options.write_in_place else set()
        )
        targets = (d.body.target for d in self.graph.definitions if isinstance(d.body, Scatter))
        places = (self.producer[name] for name in targets if name in self.producer)
        made = {place: self.graph.definitions[place].body for place in places}
        return {
            place: body.value.buffer
            for place, body in made.items()
            if isinstance(body, Pointwise)
            and isinstance(body.value, Load)
            and body.value.buffer in written
        }

    def join_producers(self, place: int) -> None:
        """Join the group of this definition with those that compute what it reads."""
        if self.groups.get(self.leader[place]) is None:
            return
        names = [n for n in reads_of(self.graph.definitions[place]) if n in self.producer]
        saved: dict[int, int] = {}
        for name in names:
            owner = self.leader[self.producer[name]]
            saved[owner] = saved.get(owner, 0) + self._saved_by(name, place)
        for owner in sorted(saved, key=lambda first: (-saved[first], first)):
            if self.leader[owner] == self.leader[place]:
                continue
            self._try_join(self.leader[owner], self.leader[place], saved[owner])

    def join_siblings(self) -> None:
        """Join groups that read the same buffer at the same points."""
        window = self.options.sibling_window
        for name, places in self.readers.items():
            for number, right in enumerate(places):
                tried: set[int] = set()
                for left in reversed(places[max(number - window, 0) : number]):
                    if right - left > window or len(tried) == _SIBLING_TRIES:
                        break
                    first, second = self.leader[left], self.leader[right]
                    if first == second:
                        break
                    if first in tried or None in (self.groups[first], self.groups[second]):
                        continue
                    tried.add(first)
                    self._try_siblings(min(first, second), max(first, second), name)

    def _saved_by(self, name: str, reader: int) -> int:
        """Bytes that need not be moved if `name` is read where it is computed."""
        nbytes = buffer_bytes(self.buffers[name])
        together = {self.leader[self.producer[name]], self.leader[reader]}
        others = any(self.leader[place] not in together for place in self.readers[name])
        return nbytes if others or name in self.kept else 2 * nbytes

    def _try_join(self, first: int, second: int, saved: int) -> None:
        """Join a producer's group with a consumer's, if that is legal and useful."""
        producer, consumer = self.groups[first], self.groups[second]
        if producer is None or consumer is None:
            return
        reduces = producer.is_reduction or consumer.is_reduction
        kind = DecisionKind.REDUCTION if reduces else DecisionKind.POINTWISE
        outcome = self._relation(producer, consumer)
        if not isinstance(outcome, str):
            outcome = self._obstacle(first, second, kind, outcome) or outcome
        if not isinstance(outcome, str) and producer.is_reduction:
            outcome = self._better_apart(first, second, outcome, saved) or outcome
        self._settle(kind, first, second, outcome, "both run over the same points", saved)

    def _better_apart(self, first: int, second: int, relation: Relation, saved: int) -> str | None:
        """Whether a reduction of what the consumer computes could be in its kernel, which saves far
        more, but not with the producer there too: the products of a weight and a row, say, where
        that row is a product itself, and each of both a sum.
        """
        producer, consumer = self.groups[first], self.groups[second]
        assert producer is not None
        assert consumer is not None
        joined: Group | None = None
        for name in consumer.writes:
            for head in dict.fromkeys(self.leader[place] for place in self.readers[name]):
                reader = self.groups[head]
                if head in (first, second) or reader is None or not reader.is_reduction:
                    continue
                shared = consumer.reads.keys() & producer.reads.keys()
                spared = saved + sum(buffer_bytes(self.buffers[each]) for each in shared)
                if self._saved_by(name, min(reader.places)) <= _MUCH * spared:
                    continue
                if joined is None:
                    joined = self._joined(first, second, relation)
                apart = self._relation(consumer, reader)
                if isinstance(apart, str) or not isinstance(self._relation(joined, reader), str):
                    continue
                if self._obstacle(second, head, DecisionKind.REDUCTION, apart) is None:
                    return f"{name} is reduced where it is computed, which saves far more"
        return None

    def _settle(
        self,
        kind: DecisionKind,
        first: int,
        second: int,
        outcome: Relation | str,
        reason: str,
        saved: int,
    ) -> None:
        """Record what came of an attempt, and merge the groups if nothing stands against it."""
        obstacle = outcome if isinstance(outcome, str) else None
        both = (self._label(first), self._label(second))
        taken = self.log.settle(kind, both, obstacle, reason, saved)
        if taken and not isinstance(outcome, str):
            self._merge(first, second, outcome)

    def _try_siblings(self, first: int, second: int, name: str) -> None:
        left, right = self.groups[first], self.groups[second]
        if left is None or right is None:
            return
        nbytes = buffer_bytes(self.buffers[name])
        if 4 * nbytes < min(self._traffic(left), self._traffic(right)):
            return
        kind = DecisionKind.SIBLING
        if left.is_scatter or right.is_scatter or self.starts.keys() & {first, second}:
            return
        outcome = self._relation(left, right)
        if not isinstance(outcome, str):
            if name not in outcome.shared:
                outcome = f"they read {name} at different points"
            else:
                outcome = self._obstacle(first, second, kind, outcome) or outcome
        reason = f"both read {name} at the same points"
        self._settle(kind, first, second, outcome, reason, nbytes)

    def _traffic(self, group: Group) -> int:
        names = [*group.reads, *group.writes]
        return sum(buffer_bytes(self.buffers[name]) for name in names)

    def _relation(self, first: Group, second: Group) -> Relation | str:
        """How one group runs over the other's domain; a reduction's domain wins."""
        if _hosts(second) and not _hosts(first):
            return relate(second, first, self.buffers)
        return relate(first, second, self.buffers)

    def _joined(self, first: int, second: int, relation: Relation) -> Group:
        producer, consumer = self.groups[first], self.groups[second]
        assert producer is not None
        assert consumer is not None
        if _hosts(consumer) and not _hosts(producer):
            return merge(consumer, producer, relation)
        return merge(producer, consumer, relation)

    def _merge(self, first: int, second: int, relation: Relation) -> None:
        joined = self._joined(first, second, relation)
        del self.groups[first], self.groups[second]
        head = min(joined.places)
        for place in joined.places:
            self.leader[place] = head
        self.groups[head] = joined

    def _obstacle(
        self, first: int, second: int, kind: DecisionKind, relation: Relation
    ) -> str | None:
        """Why two groups whose domains agree must stay apart all the same."""
        left, right = self.groups[first], self.groups[second]
        assert left is not None
        assert right is not None
        options = self.options
        reduces = left.is_reduction or right.is_reduction
        if reduces and not options.fuse_reductions:
            return "fusion with reductions is switched off"
        if not reduces and not options.fuse_pointwise:
            return "pointwise fusion is switched off"
        if _device(left) != _device(right):
            return "they run on different devices"
        if (points(left.outer) is as_index(0)) != (points(right.outer) is as_index(0)):
            return "one of them has no points"
        if left.operations + right.operations > options.max_operations:
            return f"together they have more than {options.max_operations} operations"
        joined = {**left.reads, **right.reads, **left.writes, **right.writes}
        if len(joined) > options.max_params and self._params(left, right) > options.max_params:
            return f"together they have more than {options.max_params} parameters"
        if left.is_scatter or right.is_scatter:
            obstacle = self._unfit_for_scatter(left, right)
            if obstacle is not None:
                return obstacle
        unfit = self._unfit_for_products(left, right) or _unfit_for_draws(left, right)
        return unfit or self._bad_shape(left, right) or self._cycle(first, second)

    def _unfit_for_products(self, left: Group, right: Group) -> str | None:
        """Why two groups, of which one multiplies matrices, must stay apart."""
        reduced = [
            [m.node for m in group.members if m.node.kind is not None] for group in (left, right)
        ]
        sums = [node for part in reduced for node in part if node.name in self.sums]
        most = self.options.max_sums
        if not sums or most < 0:
            return None
        if len(sums) < sum(map(len, reduced)):
            return "one multiplies matrices, and the other reduces something else"
        return f"together they have more than {most} products" if len(sums) > most else None

    def _unfit_for_scatter(self, left: Group, right: Group) -> str | None:
        """Why two groups, one of which writes at computed places, must stay apart.

        On a CPU its points run in order wherever they may meet, so it only takes in what nothing
        else needs.
        """
        producer, scatter = (left, right) if right.is_scatter else (right, left)
        if producer.is_scatter or producer.is_reduction:
            return "one writes at computed places, and the other does not run once for each of them"
        for place, source in self.starts.items():
            (start,) = self.graph.definitions[place].buffers
            if start.name in scatter.reads and source in producer.reads:
                return f"{source} is to be written in place, when it has been read"
        places = {*left.places, *right.places}
        for name in producer.writes:
            if name in self.kept or any(p not in places for p in self.readers[name]):
                return f"{name} is needed elsewhere, and would be computed in order"
        on_cpu = scatter.members[0].node.buffer.device.type == "cpu"
        few = estimate(points(scatter.outer)) < self.options.min_parallel_points
        if on_cpu and few and any(work_of(m.node.value).expensive for m in producer.members):
            return "expensive operations would run in order with what writes at computed places"
        return None

    def _params(self, left: Group, right: Group) -> int:
        """Parameters of the joined kernel: what it reads, and what others need of it."""
        written = {**left.writes, **right.writes}
        places = set(left.places) | set(right.places)
        inputs = [name for name in {**left.reads, **right.reads} if name not in written]
        outside = [
            name
            for name in written
            if name in self.kept or any(p not in places for p in self.readers[name])
        ]
        return len(inputs) + len(outside)

    def _bad_shape(self, left: Group, right: Group) -> str | None:
        """Limits that concern reductions together with work on all of their elements."""
        host = left if left.is_reduction else right
        if not host.is_reduction:
            return None
        guest = right if host is left else left
        rows, columns = estimate(points(host.outer)), estimate(points(host.inner))
        on_all = not guest.is_reduction and estimate(points(guest.outer)) > rows
        is_large = rows * columns >= self.options.min_split_elements
        is_large &= columns >= self.options.min_split_row
        if on_all and is_large and rows < self.options.min_parallel_points:
            return f"a reduction to {rows} elements would make the whole kernel run serially"
        members = (*left.members, *right.members)  # a scan's results are used in the same pass
        results = {m.node.name for m in members if isinstance(m.node.kind, ReductionKind)}
        passes = any(name in results for name in (*left.reads, *right.reads))
        if passes and 4 * columns > self.options.max_row_bytes:
            return f"a row of {columns} elements is too long to keep between passes"
        return None

    def _cycle(self, first: int, second: int) -> str | None:
        """Whether a path leads from one group to the other through a third."""
        limit = max(self._last_place(first), self._last_place(second))
        if self.everywhere:
            limit = len(self.graph.definitions)
        pair = {first, second}
        for start in (first, second):
            seen = {start}
            stack = [start]
            while stack:
                at = stack.pop()
                for successor in self._group_successors(at):
                    if successor in pair:
                        if at != start:
                            return f"a path through {self._label(at)} leads from one to the other"
                        continue
                    if successor not in seen and successor < limit:
                        seen.add(successor)
                        stack.append(successor)
                if len(seen) > self.options.search_limit:
                    return "proving that no cycle arises would take too long"
        return None

    def _label(self, head: int) -> str:
        group = self.groups[head]
        return self.graph.definitions[head].buffers[0].name if group is None else group.label

    def _group_successors(self, head: int) -> Iterable[int]:
        group = self.groups[head]
        places = (head,) if group is None else group.places
        return dict.fromkeys(self.leader[s] for p in places for s in self.successors[p])

    def ordered(self) -> list[Unit]:
        """Groups in dependency order, each as late as its last definition was."""
        waiting: dict[int, set[int]] = {head: set() for head in self.groups}
        for head in self.groups:
            for successor in self._group_successors(head):
                if successor != head:
                    waiting[successor].add(head)
        return [self._unit(head) for head in _topological(waiting, self._last_place)]

    def _last_place(self, head: int) -> int:
        group = self.groups[head]
        return head if group is None else max(group.places)

    def _unit(self, head: int) -> Unit:
        group = self.groups[head]
        return Unit((head,) if group is None else group.places, group)


def _hosts(group: Group) -> bool:
    """Whether what joins a group runs over its domain."""
    return group.is_reduction or group.is_scatter


def _device(group: Group) -> object:
    return group.members[0].node.buffer.device


def _topological(waiting: dict[int, set[int]], key: Callable[[int], int]) -> list[int]:
    """Kahn's algorithm; of several that are ready, the one with the smallest key."""
    unlocks: dict[int, list[int]] = {head: [] for head in waiting}
    for head, needed in waiting.items():
        for other in needed:
            unlocks[other].append(head)
    left = {head: len(needed) for head, needed in waiting.items()}
    ready = [(key(head), head) for head, count in left.items() if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, head = heappop(ready)
        order.append(head)
        for other in unlocks[head]:
            left[other] -= 1
            if not left[other]:
                heappush(ready, (key(other), other))
    return order


def _unfit_for_draws(left: Group, right: Group) -> str | None:
    """Why what draws random numbers on a GPU should stay apart from a reduction."""
    if left.is_reduction == right.is_reduction:
        return None
    nodes = [member.node for member in (right if left.is_reduction else left).members]
    if nodes[0].buffer.device.type == "cpu":
        return None
    if any(draws_apart(root) for node in nodes for root in node.roots):
        return "points far apart share what it draws, and rows would draw for each of them"
    return None
