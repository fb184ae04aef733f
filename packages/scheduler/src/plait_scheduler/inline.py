"""Recomputing cheap pointwise definitions where they are read.

A definition that is read at other coordinates than its own (broadcast, transposed,
sliced, concatenated) cannot share a kernel with its reader by reading the same points;
but its value can be computed at the reader's coordinates instead of being stored.
"""

from __future__ import annotations

from plait_ir_lowering import Graph

from plait_scheduler.decisions import Decision
from plait_scheduler.options import SchedulerOptions


def inline_producers(
    graph: Graph, options: SchedulerOptions
) -> tuple[Graph, list[Decision]]:
    return graph, []
