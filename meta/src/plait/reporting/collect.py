"""From what a compilation left behind to a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plait.backends import GraphCompiler
from plait.errors import CompileArgumentError
from plait.reporting.model import BreakFact, GraphReport, GuardFact, RecompileFact, Report

if TYPE_CHECKING:
    from plait_bytecode_tracer import CompiledFunction


def collect(compiled: object) -> Report:
    """The report on what `plait.compile` returned; raises CompileArgumentError for all else."""
    from plait_bytecode_tracer import compiled_function_of

    root = compiled_function_of(compiled)
    if root is None or not isinstance(root.backend, GraphCompiler):
        raise CompileArgumentError(
            f"plait.report takes what plait.compile returned, not {compiled!r}",
            hint="fast = plait.compile(f); fast(x); plait.report(fast)",
        )
    session = root.backend.session
    functions = list(_functions(root))
    return Report(
        function=session.function,
        backend=session.backend,
        graphs=tuple(GraphReport(graph) for graph in session.graphs),
        breaks=tuple(
            BreakFact(each.code, each.reason, each.line, each.hint)
            for function in functions
            for each in function.breaks
        ),
        guards=tuple(
            GuardFact(guard.text, guard.line)
            for function in functions
            for entry in function.entries
            for guard in entry.capture.guards
        ),
        recompiles=tuple(
            RecompileFact(f"{each.guard} no longer holds", each.line)
            for function in functions
            for each in function.recompiles
        ),
        trace_seconds=sum(root.profile.seconds().values()),
    )


def _functions(function: CompiledFunction) -> Iterator[CompiledFunction]:
    """A compiled function and its continuations after graph breaks."""
    yield function
    for entry in function.entries:
        for continuation in entry.resumed:
            yield from _functions(continuation)
