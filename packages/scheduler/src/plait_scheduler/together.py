"""Which kernels run at the same time: like those that update the parameters of a model.

Each of them alone is too small to keep a machine's processors busy, and waking them costs more
than many such kernels. Fusing them into one loop nest is not possible where their shapes differ,
so a backend is told which launches it may merge into one parallel region; for GPUs they are
combined where their code is equal (`plait_scheduler.combine`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import field

from plait_ir_lowering import Buffer, Graph
from plait_scheduler.checks import calls_foreign, raises
from plait_scheduler.domains import points
from plait_scheduler.fusion import Unit
from plait_scheduler.memory import ALIGNMENT
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.sizes import buffer_bytes, estimate
from plait_utils import dataclass


def stages_of(graph: Graph, units: Sequence[Unit], options: SchedulerOptions) -> list[list[Unit]]:
    """The units in order, those in one list that may run at the same time.

    Neighbours are joined that read nothing of each other and compute only what the program
    hands out or writes back: so none of them needs temporary memory, of which kernels that run
    at the same time would need more. Those that may be combined may compute numbers for others.
    """
    kept = set(final_reads(graph))
    if options.combine_launches:
        kept |= _tiny({b.name: b for d in graph.definitions for b in d.buffers})
    defined = [_defined(graph, unit) for unit in units]
    read = [_read(graph, unit) for unit in units]
    readers = Counter(name for names in read for name in names)
    stages: list[list[Unit]] = []
    computed: set[str] = set()
    is_open = False
    for unit, own, names in zip(units, defined, read, strict=True):
        temporary = any(readers[name] > (name in names) and name not in kept for name in own)
        may = options.run_together or (options.combine_launches and _is_small(unit, options))
        joins = may and not temporary and unit.group is not None
        if joins and is_open and not names & computed:
            stages[-1].append(unit)
            computed |= own
        else:
            stages.append([unit])
            computed = own
        is_open = joins
    return stages


def gathered(graph: Graph, units: Sequence[Unit], options: SchedulerOptions) -> list[Unit]:
    """The units with small ones side by side that may be combined.

    Those whose results nothing reads, as counters of layers and gradients in another type, wait
    until what they hold back of other temporaries' memory is `most_waiting_bytes`: that much is
    still in a GPU's cache. Those that read inputs alone come first where what they compute for
    others is handed out anyway, as weights in another type for a backward, or a few numbers.

    Results that are written back to inputs may still be computed there: no unit moves behind one
    that writes what it reads; and where there are such results, only units wait that compute
    nothing else. What writes to inputs does not come first, since that is after all that can fail
    and all that is allocated: where it computes a few numbers for others beside that, as a step's
    count does for its parameter, it comes just before the units that wait, if these alone read
    them. Beside calls of operators that are not torch's own, what may raise stays where it is.
    """
    if not options.combine_launches:
        return [*units]
    buffers = {b.name: b for d in graph.definitions for b in d.buffers}
    own = {source.buffer: target for target, source in graph.mutations}
    written = {target for target, _ in graph.mutations}
    is_foreign = any(map(calls_foreign, graph.definitions))
    kept, tiny = set(final_reads(graph)), _tiny(buffers)
    readers = Counter(name for unit in units for name in _read(graph, unit))
    order = _Order(buffers, options.most_waiting_bytes)
    for unit in units:
        read, defined = _read(graph, unit), _defined(graph, unit)
        temporary = (read & buffers.keys()) - defined
        theirs = (read & written) - {own[name] for name in defined if name in own}
        stays = is_foreign and any(raises(graph.definitions[place]) for place in unit.places)
        moves = _is_small(unit, options) and not theirs and not stays
        for_others = {name for name in defined if readers[name] > (name in read)}
        made = for_others | (defined & (own.keys() | kept))  # the rest is in registers
        is_early = moves and for_others and not temporary
        if moves and not for_others and (not own or made <= own.keys()):
            order.wait(unit, temporary - kept)
        elif is_early and made.isdisjoint(own) and made <= kept | tiny:
            order.first.append(unit)
        elif is_early and made <= own.keys() | (tiny - kept):
            order.count(unit, made)
        else:
            order.go_on(unit, read)
    return order.units()


@dataclass(slots=True)
class _Order:
    """Units in the order in which they are to run."""

    buffers: Mapping[str, Buffer]
    most_bytes: int
    """Of temporaries, that units may hold back which wait."""
    first: list[Unit] = field(default_factory=list)
    others: list[Unit] = field(default_factory=list)
    counts: list[Unit] = field(default_factory=list)
    waiting: list[Unit] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)
    """What `counts` compute."""
    held: set[str] = field(default_factory=set)
    """The temporaries that `waiting` hold back."""
    held_bytes: int = 0

    def wait(self, unit: Unit, temporaries: Set[str]) -> None:
        self.waiting.append(unit)
        self.held_bytes += sum(buffer_bytes(self.buffers[name]) for name in temporaries - self.held)
        self.held |= temporaries
        if self.held_bytes > self.most_bytes:
            self._end_counts()
            self.others += self.waiting
            self.waiting.clear()
            self.held.clear()
            self.held_bytes = 0

    def count(self, unit: Unit, defined: Set[str]) -> None:
        self.counts.append(unit)
        self.counted |= defined

    def go_on(self, unit: Unit, read: Set[str]) -> None:
        if not self.counted.isdisjoint(read):
            self._end_counts()
        self.others.append(unit)

    def units(self) -> list[Unit]:
        return [*self.first, *self.others, *self.counts, *self.waiting]

    def _end_counts(self) -> None:
        self.others += self.counts
        self.counts.clear()
        self.counted.clear()


def _is_small(unit: Unit, options: SchedulerOptions) -> bool:
    """Whether a unit may be combined with others, as far as can be told before its kernel is made:
    it is pointwise, and takes about as long as its launch."""
    group = unit.group
    if group is None or group.is_reduction or group.is_scatter or group.inner:
        return False
    return estimate(points(group.outer)) <= options.most_combined_points


def _tiny(buffers: Mapping[str, Buffer]) -> set[str]:
    """Those that take no more memory than there is between two buffers anyway."""
    return {name for name, buffer in buffers.items() if buffer_bytes(buffer) <= ALIGNMENT}


def _read(graph: Graph, unit: Unit) -> set[str]:
    return {name for place in unit.places for name in reads_of(graph.definitions[place])}


def _defined(graph: Graph, unit: Unit) -> set[str]:
    return {b.name for place in unit.places for b in graph.definitions[place].buffers}
