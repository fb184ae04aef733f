"""What a compilation keeps: accepted by the verifiers, and text that reads back as the same."""

from __future__ import annotations

from typing import Any

from plait_ir_lowering import Graph, parse_graph, print_graph, verify
from plait_scheduler import Program, parse_program, print_program, verify_program


class RoundTripError(Exception):
    """Text that does not read back as what was printed."""


def check_report(report: Any) -> None:
    """All graphs that a report of `plait.report` tells of; raises what a verifier raises."""
    for graph in report.graphs:
        if graph.record.loops is not None:
            check_loops(graph.record.loops)
        if graph.record.schedule is not None:
            check_scheduled(graph.record.schedule.program)


def check_loops(loops: Graph) -> None:
    """A graph of the loop IR."""
    verify(loops)
    if parse_graph(print_graph(loops)) != loops:
        raise RoundTripError("the text of the loop IR reads back as another graph")


def check_scheduled(scheduled: Program) -> None:
    """What the scheduler made of it."""
    verify_program(scheduled)
    if parse_program(print_program(scheduled)) != scheduled:
        raise RoundTripError("the text of a scheduled program reads back as another")
