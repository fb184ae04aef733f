"""The report as plain text."""

from __future__ import annotations

from collections import Counter

from plait.reporting.model import CompileReport, GraphReport


def render_text(report: CompileReport) -> str:
    """Paragraphs for graphs, breaks, recompiles, guards and seconds; no terminal needed."""
    sections = [
        _headline(report),
        *(_graph(graph) for graph in report.graphs),
        _list("graph breaks", [str(each) for each in report.breaks]),
        _list("recompiles", [str(each) for each in report.recompiles]),
        _list("guards", [_guard(each.text, each.line) for each in report.guards]),
        _seconds(report),
    ]
    return "\n\n".join(section for section in sections if section)


def _headline(report: CompileReport) -> str:
    facts = [
        count(len(report.graphs), "graph"),
        count(len(report.breaks), "graph break"),
        count(report.kernels, "kernel"),
        count(report.external_calls, "external call"),
        count(len(report.recompiles), "recompile"),
        count(report.cache_hits, "cache hit"),
    ]
    head = f"plait report: {report.function} (backend {report.backend!r})\n  {', '.join(facts)}"
    return head if report.graphs else f"{head}\n  {nothing_compiled(report)}"


def nothing_compiled(report: CompileReport) -> str:
    """Why a report has no graphs."""
    if report.breaks or report.guards:
        return "calls run as Python: no tensor operations could be captured before the breaks"
    return "not compiled yet: call it first"


def count(number: int, noun: str) -> str:
    """ "1 graph", "2 graphs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _graph(graph: GraphReport) -> str:
    facts = [f"{graph.operators} torch operations"]
    if graph.record.schedule is not None:
        facts.append(f"{len(graph.kernels)} kernels launched {graph.launches} times")
    if graph.external_calls:
        calls = Counter(graph.external_calls)
        facts.append("calls " + ", ".join(f"{op} ×{n}" for op, n in calls.items()))
    facts.append(f"{sum(graph.seconds.values()):.2f} s to compile")
    if graph.cache_hit:
        facts.append("binary from the cache")
    lines = [f"graph {graph.name}: {graph.outcome}", *(f"  {fact}" for fact in facts)]
    if graph.reason:
        lines.append("  because " + graph.reason.replace("\n", "\n    "))
    return "\n".join(lines)


def _guard(text: str, line: str) -> str:
    return f"{text}\n  needed by: {line}" if line else text


def _list(title: str, items: list[str]) -> str:
    if not items:
        return ""
    indented = [item.replace("\n", "\n    ") for item in items]
    return "\n".join([f"{title}:", *(f"  {item}" for item in indented)])


def _seconds(report: CompileReport) -> str:
    if not report.seconds:
        return ""
    lines = [f"  {stage:<10} {seconds:8.3f}" for stage, seconds in report.seconds.items()]
    total = f"  {'total':<10} {sum(report.seconds.values()):8.3f}"
    return "\n".join(["seconds by stage:", *lines, total])
