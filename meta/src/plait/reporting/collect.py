"""From what a compilation left behind to a report."""

from __future__ import annotations

from plait.backend import GraphCompiler
from plait.errors import OptionError, shown
from plait.reporting.model import BreakFact, CompileReport, GraphReport, GuardFact, RecompileFact


def collect(compiled: object) -> CompileReport:
    """The report on what `plait.compile` returned; raises OptionError for all else."""
    from plait_bytecode_tracer import compiled_function_of

    root = compiled_function_of(compiled)
    if root is None or not isinstance(root.backend, GraphCompiler):
        raise OptionError(
            f"plait.report takes what plait.compile returned, not {shown(compiled)}",
            hint="fast = plait.compile(f); fast(x); plait.report(fast)",
        )
    compiler = root.backend
    functions = root.family()
    return CompileReport(
        function=compiler.name,
        backend=_backend_name(compiler),
        graphs=tuple(GraphReport(graph) for graph in compiler.graphs),
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


def _backend_name(compiler: GraphCompiler) -> str:
    backend = compiler.request.backend
    return backend if isinstance(backend, str) else getattr(backend, "__qualname__", "custom")
