"""The report as data and as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.errors import OptionError


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One compiled graph."""

    name: str
    kernels: tuple[str, ...]
    launches: int
    externals: dict[str, int]
    note: str | None
    """Why it runs eagerly or as Python, if it does."""
    python: str
    """The user's source lines that it came from."""
    captured: str
    aten: str
    loops: str
    program: str
    source: str


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What compiling and calling a function came to. `str()` gives it as text."""

    name: str
    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...]
    guards: tuple[str, ...]
    recompiles: tuple[str, ...]
    seconds: dict[str, float]
    counters: dict[str, int]

    @property
    def kernels(self) -> int:
        """How many kernels there are, over all graphs."""
        return sum(len(graph.kernels) for graph in self.graphs)

    def __str__(self) -> str:
        lines = [f"plait report for {self.name}", ""]
        lines.append(f"graphs: {len(self.graphs)}, graph breaks: {len(self.breaks)}")
        for graph in self.graphs:
            lines.append(f"  {graph.name}: {len(graph.kernels)} kernels, {graph.launches} launches")
            for kernel in graph.kernels:
                lines.append(f"    kernel {kernel}")
            for name, count in graph.externals.items():
                lines.append(f"    external {name} × {count}")
            if graph.note:
                lines.append(f"    note: {graph.note}")
        lines += _section("graph breaks", self.breaks)
        lines += _section("recompiles", self.recompiles)
        lines += _section(f"guards ({len(self.guards)})", self.guards)
        lines.append("seconds by stage:")
        lines += [f"  {name:<10} {seconds:8.4f}" for name, seconds in self.seconds.items()]
        lines.append(f"  {'total':<10} {sum(self.seconds.values()):8.4f}")
        return "\n".join(lines)

    def save_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML page; return its path."""
        from plait.reporting.html import render_html

        target = Path(path)
        target.write_text(render_html(self))
        return target


def _section(title: str, items: tuple[str, ...]) -> list[str]:
    if not items:
        return [f"{title}: none"]
    indented = [f"  {item}".replace("\n", "\n    ") for item in items]
    return [f"{title}:", *indented]


def report(compiled: Any) -> CompileReport:
    """What became of a function, method or module that `plait.compile` returned.

    Raises OptionError for anything else.
    """
    from plait.backend import GraphCompiler
    from plait_bytecode_tracer import compiled_function_of

    function = compiled_function_of(compiled)
    compiler = None if function is None else function.backend
    if function is None or not isinstance(compiler, GraphCompiler):
        raise OptionError(
            f"plait.report takes what plait.compile returned, not {compiled!r}",
            hint="Pass the compiled function or module itself.",
        )
    family = function.family()
    return CompileReport(
        function.__name__,
        tuple(_graph_report(graph) for graph in compiler.graphs),
        tuple(str(found) for member in family for found in member.breaks),
        tuple(
            str(guard)
            for member in family
            for entry in member.entries
            for guard in entry.capture.guards
        ),
        tuple(str(found) for member in family for found in member.recompiles),
        compiler.profile.seconds(),
        compiler.profile.counters(),
    )


def _graph_report(graph: Any) -> GraphReport:
    import plait_fx_passes
    import plait_scheduler

    program = graph.program
    kernels = () if program is None else tuple(kernel.name for kernel in program.kernels)
    launches = 0
    if program is not None:
        launches = sum(isinstance(step, plait_scheduler.Launch) for step in program.steps)
    note = graph.note or getattr(graph.executable, "fallback_reason", None)
    lines = dict.fromkeys(
        str(node.meta["source_line"])
        for node in graph.graph_module.graph.nodes
        if node.op != "placeholder" and "source_line" in node.meta
    )
    return GraphReport(
        graph.name,
        kernels,
        launches,
        dict(graph.externals),
        note,
        "\n".join(lines),
        graph.graph_module.code.strip(),
        "" if graph.aten is None else plait_fx_passes.print_aten(graph.aten),
        "" if graph.loops is None else _print_loops(graph.loops),
        "" if program is None else plait_scheduler.print_program(program),
        getattr(graph.executable, "source", None) or "",
    )


def _print_loops(loops: Any) -> str:
    import plait_ir_lowering

    printer = getattr(plait_ir_lowering, "print_graph", None)
    return printer(loops) if printer is not None else ""
