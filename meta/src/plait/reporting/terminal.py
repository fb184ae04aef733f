"""The report for terminals: `rich.print(plait.report(f))`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from plait.reporting.model import CompileReport
from plait.reporting.text import nothing_compiled

if TYPE_CHECKING:
    from rich.console import Group


def render_terminal(report: CompileReport) -> Group:
    """Tables of graphs, breaks, recompiles and seconds."""
    from rich.console import Group
    from rich.table import Table

    graphs = Table(title=f"plait report: {report.function}", title_justify="left")
    for column in ("graph", "runs", "operations", "kernels", "external", "seconds", "because"):
        text = column in ("graph", "runs", "because")
        graphs.add_column(column, justify="left" if text else "right")
    for graph in report.graphs:
        graphs.add_row(
            graph.name,
            graph.runs,
            str(graph.operators),
            str(len(graph.kernels)),
            str(len(graph.external_calls)),
            f"{sum(graph.seconds.values()):.3f}",
            graph.reason or "",
        )
    empty = f"{report.function}: {nothing_compiled(report)}"
    parts: list[Table | str] = [graphs if report.graphs else empty, *report.notices]
    parts += [str(each) for each in report.background]
    if report.breaks:
        breaks = Table(title="Graph breaks", title_justify="left")
        for column in ("code", "times", "reason", "line", "what to change"):
            breaks.add_column(column)
        for each, number in Counter(report.breaks).items():
            breaks.add_row(each.code, str(number), each.reason, "\n".join(each.lines), each.hint)
        parts.append(breaks)
    if report.recompiles:
        recompiles = Table("why", "needed by", title="Recompiles", title_justify="left")
        for recompile in report.recompiles:
            recompiles.add_row(recompile.reason, recompile.line)
        parts.append(recompiles)
    if not report.seconds:
        return Group(*parts)
    seconds = Table("stage", "seconds", title="Seconds by stage", title_justify="left")
    for stage, spent in report.seconds.items():
        seconds.add_row(stage, f"{spent:.3f}")
    return Group(*parts, seconds)
