"""Which kernels run at the same time: like those that update the parameters of a model.

Each of them alone is too small to keep a machine's processors busy, and waking them costs more
than many such kernels. Fusing them into one loop nest is not possible where their shapes differ,
so a backend is told which launches it may merge into one parallel region.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from plait_ir_lowering import Graph
from plait_scheduler.fusion import Unit
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions


def stages_of(graph: Graph, units: Sequence[Unit], options: SchedulerOptions) -> list[list[Unit]]:
    """The units in order, those in one list that may run at the same time.

    Neighbours are joined that read nothing of each other and compute only what the program
    hands out or writes back: so none of them needs temporary memory, of which kernels that run
    at the same time would need more.
    """
    kept = frozenset(final_reads(graph))
    defined = [_defined(graph, unit) for unit in units]
    read = [
        {name for place in unit.places for name in reads_of(graph.definitions[place])}
        for unit in units
    ]
    readers = Counter(name for names in read for name in names)
    stages: list[list[Unit]] = []
    computed: set[str] = set()
    is_open = False
    for unit, own, names in zip(units, defined, read, strict=True):
        temporary = any(readers[name] > (name in names) and name not in kept for name in own)
        joins = options.run_together and not temporary and unit.group is not None
        if joins and is_open and not names & computed:
            stages[-1].append(unit)
            computed |= own
        else:
            stages.append([unit])
            computed = own
        is_open = joins
    return stages


def _defined(graph: Graph, unit: Unit) -> set[str]:
    return {b.name for place in unit.places for b in graph.definitions[place].buffers}
