"""The report as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from plait.record import PassFact
from plait.reporting.model import CompileReport, GraphReport, RunFact


def render_text(report: CompileReport) -> str:
    """Paragraphs for graphs, breaks, recompiles, guards and seconds; no terminal needed."""
    sections = [
        _headline(report),
        _list("notice", list(report.notices)),
        _list("compiled in the background", [str(each) for each in report.background]),
        _list("what a call runs", _runs(report)),
        *(_graph(graph) for graph in report.graphs),
        _list("graph breaks", counted(report.breaks)),
        _list("recompiles", counted(report.recompiles)),
        _list(_guards_title(report), _guards(report)),
        _seconds(report),
    ]
    return "\n\n".join(section for section in sections if section)


def _headline(report: CompileReport) -> str:
    facts = [
        count(len(report.graphs), "graph") + outcomes(report),
        count(len(report.breaks), "graph break"),
        count(report.kernels, "kernel"),
        count(report.external_calls, "external call"),
        count(len(report.recompiles), "recompile"),
        count(report.cache_hits, "cache hit"),
    ]
    head = f"plait report: {report.function} (backend {report.backend!r})\n  {', '.join(facts)}"
    return head if report.graphs else f"{head}\n  {nothing_compiled(report)}"


def outcomes(report: CompileReport) -> str:
    """ " (3 compiled, 1 eager)" where not all are compiled, else nothing."""
    if set(report.outcomes) <= {"compiled"}:
        return ""
    return f" ({', '.join(f'{number} {outcome}' for outcome, number in report.outcomes.items())})"


def _runs(report: CompileReport) -> list[str]:
    """Each specialisation as a paragraph, with what follows its break indented under it."""
    outcome = {graph.name: graph.runs for graph in report.graphs}
    return ["\n".join(_run_lines(run, n, outcome)) for n, run in enumerate(report.runs, 1)]


def _run_lines(run: RunFact, number: int, outcomes: Mapping[str, str]) -> Iterator[str]:
    yield f"{number}. for {given(run)}"
    details = [f"made because {run.made_for}"] if run.made_for else []
    for name in run.graphs:
        lines = f": {run.lines}" if run.lines else ""
        details.append(f"graph {name}, {outcomes[name]}{lines}")
    if run.ends_at is not None:
        details.append(f"Python, because of [{run.ends_at.code}] at {run.ends_at.line}")
    if not run.graphs and run.ends_at is None:
        details.append("Python: there are no tensor operations")
    for position, rest in enumerate(run.then, 1):
        details += _run_lines(rest, position, outcomes)
    yield from (f"  {line}" for line in details)


def given(run: RunFact) -> str:
    """What a specialisation is for."""
    return ", ".join(run.inputs) or "calls that its guards fit"


def counted(facts: Sequence[object]) -> list[str]:
    """The facts as text, equal ones once with their number."""
    texts = Counter(str(fact) for fact in facts)
    return [text if number == 1 else f"{number} times: {text}" for text, number in texts.items()]


_GUARDS_PER_LINE = 3


def _guards_title(report: CompileReport) -> str:
    return f"guards ({len(report.guards)}, all of them in .guards and in the page)"


def _guards(report: CompileReport) -> list[str]:
    """For each user line the first of the guards that it needed, and how many more."""
    items = []
    for line, texts in guards_by_line(report).items():
        more = len(texts) - _GUARDS_PER_LINE
        lines = [*texts[:_GUARDS_PER_LINE], *([f"and {more} more"] if more > 0 else [])]
        items.append("\n  ".join([line or "surroundings", *lines]))
    return items


def guards_by_line(report: CompileReport) -> dict[str, list[str]]:
    """Guards by the user's line that needed them, each once."""
    found: dict[str, dict[str, None]] = {}
    for guard in report.guards:
        found.setdefault(guard.line, {})[guard.text] = None
    return {line: list(texts) for line, texts in found.items()}


def nothing_compiled(report: CompileReport) -> str:
    """Why a report has no graphs."""
    if report.breaks:
        return "calls run as Python: no tensor operations could be captured before the breaks"
    if report.guards:
        return "nothing to compile: there are no tensor operations"
    return "not compiled yet: call it first"


def count(number: int, noun: str) -> str:
    """ "1 graph", "2 graphs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _graph(graph: GraphReport) -> str:
    facts = [count(graph.operators, "torch operation")]
    if graph.record.schedule is not None:
        launched = f"launched {count(graph.launches, 'time')}"
        facts.append(f"{count(len(graph.kernels), 'kernel')} {launched}")
    facts += _kernels(graph)
    facts += planned(graph)
    if graph.unrounded:
        facts.append(unrounded(graph))
    if graph.external_calls:
        calls = Counter(graph.external_calls)
        facts.append("calls " + ", ".join(f"{op} ×{n}" for op, n in calls.items()))
    facts += [f"tuned {each}" for each in (*graph.tuned, *([graph.varied] if graph.varied else []))]
    facts += [graph.cuda_graphs] if graph.cuda_graphs else []
    facts += passes(graph)
    facts += graph.images_total.splitlines()
    facts += products(graph)
    facts += padded(graph)
    if graph.python_reason:
        facts.append("Python launches the kernels: " + graph.python_reason.replace("\n", "\n    "))
    facts += as_torch(graph)
    facts += [graph.unaligned] if graph.unaligned else []
    if graph.pieces:
        facts.append(graph.pieces)
    if graph.saved_total:
        facts.append(graph.saved_total)
        facts += _saved(graph)
    if graph.seconds:
        facts.append(f"{sum(graph.seconds.values()):.2f} s to compile")
    if graph.cache_hit:
        facts.append("binary from the cache")
    lines = [f"graph {graph.name}: {graph.runs}", *(f"  {fact}" for fact in facts)]
    if graph.race and graph.outcome == "compiled":
        lines.append(f"  {graph.race}")
    if graph.verification:
        lines.append("  verified: " + graph.verification.replace("\n", "\n    "))
    if graph.run_failures:
        lines.append("  " + graph.run_failures.replace("\n", "\n    "))
    if graph.reason:
        lines.append("  because " + graph.reason.replace("\n", "\n    "))
    return "\n".join(lines)


def passes(graph: GraphReport) -> list[str]:
    """The passes that changed something: how often, in which time, and what came of it; and what
    they left alone."""
    return [
        pass_summary(each)
        + "".join(f"\n    {line}" for line in _made(each))
        + "".join(f"\n    not: {reason}" for reason in each.left)
        for each in graph.passes
        if each.rewrites or each.left or each.changes
    ]


def pass_summary(done: PassFact) -> str:
    """What a pass did, in a line."""
    return (
        f"pass {done.name} ({done.seconds * 1000:.1f} ms): {count(done.rewrites, 'rewrite')}"
        + "".join(f", {rule} ×{n}" for rule, n in done.matches.items())
        + "".join(f", {n:+} {operator}" for operator, n in done.changes.items())
    )


def _made(done: PassFact) -> list[str]:
    """The first of the nodes that rules made, and how many lines more the difference has."""
    lines = [line for line in done.diff if line.startswith("+") and "  # by " in line]
    more = len(done.diff) - len(lines[:_MADE])
    if not lines:
        return []
    return [*lines[:_MADE], *([f"and {more} more, in .passes and the page"] if more else [])]


_MADE = 3


def planned(graph: GraphReport) -> list[str]:
    """What fusion saves and what memory a call takes, with the largest of what was decided."""
    chosen = [each for each in graph.decisions if each.accepted and each.bytes_saved]
    refused = [each for each in graph.decisions if not each.accepted and each.bytes_saved]
    lines = []
    for told in graph.planned:
        lines.append(told)
        if told.startswith("fusion"):
            lines += [f"  {each}" for each in (*chosen[:_MADE], *refused[:_MADE])]
            more = len(graph.decisions) - len(lines) + 1
            lines += [f"  and {more} more, in .decisions and the page"] if more > 0 else []
    return lines


def products(graph: GraphReport) -> list[str]:
    """The matrix products that are kernels."""
    more = len(graph.products) - _LARGEST
    lines = [f"own kernel {each}" for each in graph.products[:_LARGEST]]
    return lines + ([f"and {more} more products, all of them in .products"] if more > 0 else [])


def as_torch(graph: GraphReport) -> list[str]:
    """The kernels that Triton does not take."""
    told = graph.torch_kernels.items()
    return [f"the kernel {name} runs as torch operations: {reason}" for name, reason in told]


def padded(graph: GraphReport) -> list[str]:
    """The products with room behind their rows."""
    more = len(graph.padded) - _LARGEST
    lines = [f"room behind the rows of {each}" for each in graph.padded[:_LARGEST]]
    return lines + ([f"and of {more} more, all of them in .padded"] if more > 0 else [])


def unrounded(graph: GraphReport) -> str:
    """How many values are not rounded to their dtype."""
    values = count(len(graph.unrounded), "value")
    return f"{values} of bfloat16 or float16 in float32, not rounded between operators"


_LARGEST = 5
"""So many of the kernels, and of the tensors that are saved, are listed."""


def _kernels(graph: GraphReport) -> list[str]:
    """The kernels that move most, and how many more."""
    more = len(graph.roofline) - _LARGEST
    lines = [f"  {each}" for each in graph.roofline[:_LARGEST]]
    return lines + ([f"  and {more} more, all of them in .roofline"] if more > 0 else [])


def _saved(graph: GraphReport) -> list[str]:
    """The largest of the tensors that are held for the backward, and how many more."""
    held = [each for each in graph.saved if each.bytes]
    lines = [f"  {each.bytes:>12,} bytes: {each}" for each in held[:_LARGEST]]
    more = len(held) - _LARGEST
    return lines + ([f"  and {more} more, all of them in .saved and the page"] if more > 0 else [])


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
