"""From what a compilation left behind to a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plait.backend import GraphCompiler
from plait.errors import OptionError
from plait.reporting.model import (
    BackgroundFact,
    BreakFact,
    CompileReport,
    GraphReport,
    GuardFact,
    RecompileFact,
    RunFact,
)
from plait_bytecode_tracer import USER_LINE
from plait_utils import shown

if TYPE_CHECKING:
    from torch import fx

    from plait.record import CompiledGraph
    from plait_bytecode_tracer import CompiledFunction, Entry, GraphBreak, Recompile


def collect(compiled: object, *, measure: bool = False) -> CompileReport:
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
    graphs = compiler.graphs
    names: dict[int, list[str]] = {}
    for graph in graphs:
        names.setdefault(id(graph.origin or graph.captured), []).append(graph.name)
    return CompileReport(
        function=compiler.name,
        backend=_backend_name(compiler),
        graphs=tuple(_graph(graph, measure) for graph in graphs),
        breaks=tuple(_break(each) for function in functions for each in function.breaks),
        guards=tuple(
            GuardFact(guard.text, guard.line)
            for function in functions
            for entry in function.entries
            for guard in entry.capture.guards
        ),
        recompiles=tuple(
            RecompileFact(_reason(each), each.line)
            for function in functions
            for each in function.recompiles
        ),
        trace_seconds=sum(root.profile.seconds().values()),
        runs=_runs(root, names, []),
        notices=tuple(_notices(functions, compiler)),
        background=tuple(
            BackgroundFact(each.name, each.state, each.calls) for each in compiler.meanwhile
        ),
    )


def _graph(record: CompiledGraph, measure: bool) -> GraphReport:
    made = GraphReport(record, measure)
    if measure:
        _ = made.roofline  # now, not when the report is read
    return made


def _backend_name(compiler: GraphCompiler) -> str:
    backend = compiler.request.backend
    return backend if isinstance(backend, str) else getattr(backend, "__qualname__", "custom")


def _break(found: GraphBreak) -> BreakFact:
    return BreakFact(found.code, found.reason, found.lines, found.hint)


def _reason(recompile: Recompile) -> str:
    found = f"; now {recompile.found}" if recompile.found else ""
    return f"{recompile.guard} no longer holds{found}"


def _notices(functions: list[CompiledFunction], compiler: GraphCompiler) -> list[str]:
    warm = [] if compiler.warm is None else compiler.warm.notices
    return [*warm] + [
        f"{function.__name__} has {len(function.entries)} specialisations, the most allowed: calls "
        'that fit none run eagerly. options={"recompile_limit": n} allows more'
        for function in functions
        if function.limits.is_reached(function.entries)
    ]


def _runs(
    function: CompiledFunction,
    names: Mapping[int, Sequence[str]],
    told: list[CompiledFunction],
) -> tuple[RunFact, ...]:
    """What a function was compiled for; nothing where it goes on further and was told already, as
    what a loop goes on in: all ways through many breaks would be too many."""
    goes_on = any(entry.resumed for entry in function.entries)
    if goes_on and any(function is each for each in told):
        return ()
    told.append(function)
    reasons = ["", *(_reason(each) for each in tuple(function.recompiles))]
    entries = function.entries
    reasons += [""] * (len(entries) - len(reasons))
    pairs = zip(entries, reasons, strict=False)
    return tuple(_run(entry, why, names, told) for entry, why in pairs)


def _run(
    entry: Entry,
    made_for: str,
    names: Mapping[int, Sequence[str]],
    told: list[CompiledFunction],
) -> RunFact:
    capture = entry.capture
    return RunFact(
        inputs=_inputs(capture.graph_module),
        made_for=made_for,
        graphs=tuple(names.get(id(capture.graph_module), ())),
        lines=line_range(capture.graph_module),
        ends_at=None if capture.graph_break is None else _break(capture.graph_break),
        then=tuple(run for each in entry.resumed for run in _runs(each, names, told)),
    )


def _inputs(graph: fx.GraphModule) -> tuple[str, ...]:
    """The graph's inputs that are arguments themselves, not something read from one."""
    return tuple(
        f"{node.meta['source']}: {described(node)}"
        for node in graph.graph.find_nodes(op="placeholder")
        if re.fullmatch(r"[^\W_]\w*", str(node.meta.get("source", "")))
    )


def described(node: fx.Node) -> str:
    """The dtype and shape of a node's value: "float32[4, 8]"."""
    value = node.meta.get("val")
    if value is None or not hasattr(value, "shape"):
        return "object" if value is None else type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def line_range(graph: fx.GraphModule) -> str:
    """The user's lines that a graph computes, by file: "model.py:10-23, layers.py:4"."""
    numbers: dict[str, list[int]] = {}
    for node in graph.graph.nodes:
        found = USER_LINE.match(str(node.meta.get("source_line", "")))
        if found is not None and node.op not in ("placeholder", "output"):
            numbers.setdefault(found["file"], []).append(int(found["number"]))
    return ", ".join(
        f"{file}:{min(lines)}" + (f"-{max(lines)}" if max(lines) > min(lines) else "")
        for file, lines in numbers.items()
    )
