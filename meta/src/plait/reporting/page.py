"""The report as one HTML page: every stage side by side, linked by user line."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping
from importlib import resources

from plait.record import PassFact
from plait.reporting.highlight import highlight
from plait.reporting.model import CompileReport, GraphReport, RunFact
from plait.reporting.panes import Pane, panes_of, user_lines
from plait.reporting.text import (
    as_torch,
    count,
    given,
    guards_by_line,
    nothing_compiled,
    outcomes,
    padded,
    products,
    unrounded,
)


def render_page(report: CompileReport) -> str:
    """A self-contained page; it loads nothing."""
    sections = [
        _header(report),
        _timings(report),
        _notes(report),
        *(_graph(graph, number) for number, graph in enumerate(report.graphs)),
    ]
    if not report.graphs:
        sections.append(f'<p class="empty">{_text(nothing_compiled(report))}</p>')
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>plait report: {_text(report.function)}</title>"
        f"<style>{_asset('page.css')}</style></head>\n"
        f"<body>{''.join(sections)}<script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    folder = resources.files("plait.reporting").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _text(value: object) -> str:
    return html.escape(str(value))


def _header(report: CompileReport) -> str:
    seconds = sum(report.seconds.values())
    tiles = [
        (str(len(report.graphs)), _noun(len(report.graphs), "graph") + outcomes(report)),
        (str(len(report.breaks)), _noun(len(report.breaks), "graph break")),
        (str(report.kernels), _noun(report.kernels, "kernel")),
        (str(report.external_calls), _noun(report.external_calls, "external call")),
        (str(len(report.recompiles)), _noun(len(report.recompiles), "recompile")),
        (f"{seconds:.2f} s", "compiling"),
        (str(report.cache_hits), _noun(report.cache_hits, "cache hit")),
    ]
    shown = "".join(
        f'<div class="tile"><b>{_text(number)}</b><span>{_text(noun)}</span></div>'
        for number, noun in tiles
    )
    return (
        '<header><div class="title"><p class="brand">plait report</p>'
        f"<h1>{_text(report.function)}</h1></div>"
        '<button id="theme" type="button" title="light or dark">◐</button>'
        f'<div class="tiles">{shown}</div></header>'
    )


def _noun(number: int, noun: str) -> str:
    return count(number, noun).split(" ", 1)[1]


def _timings(report: CompileReport) -> str:
    """One bar of stages, as wide as their share of the seconds."""
    seconds = report.seconds
    total = sum(seconds.values())
    if not total:
        return ""
    parts, legend = [], []
    for number, (stage, spent) in enumerate(seconds.items()):
        share = 100 * spent / total
        title = _text(f"{stage}: {spent:.3f} s, {share:.0f}%")
        style = f"flex-grow:{share:.3f}"
        parts.append(f'<i class="stage{number % 9}" style="{style}" title="{title}"></i>')
        legend.append(
            f'<li><i class="stage{number % 9}"></i>{_text(stage)} <b>{_seconds(spent)}</b></li>'
        )
    return (
        '<section class="timings"><h2>Where compiling spent its time</h2>'
        f'<div class="bar">{"".join(parts)}</div>'
        f'<ul class="legend">{"".join(legend)}</ul></section>'
    )


def _seconds(spent: float) -> str:
    return f"{spent:.2f} s" if spent >= 1 else f"{1e3 * spent:.1f} ms"


def _notes(report: CompileReport) -> str:
    """What a call runs, graph breaks, recompiles, and guards."""
    notices = "".join(
        f'<p class="reason">{_text(notice)}</p>'
        for notice in (*report.notices, *map(str, report.background))
    )
    breaks = [
        f"<li><code>{_text(b.code)}</code> {_text(b.reason)}{_times(number)}"
        f"<p class='where'>{'<br>'.join(map(_text, b.lines))}</p>"
        f"<p class='hint'>{_text(b.hint)}</p></li>"
        for b, number in Counter(report.breaks).items()
    ]
    recompiles = [
        f"<li>{_text(r.reason)}{_times(number)}<p class='where'>{_text(r.line)}</p></li>"
        for r, number in Counter(report.recompiles).items()
    ]
    guards = [
        f"<li><p class='where'>{_text(line)}</p><ul>"
        + "".join(f"<li><code>{_text(text)}</code></li>" for text in texts)
        + "</ul></li>"
        for line, texts in guards_by_line(report).items()
    ]
    return (
        notices
        + _note("What a call runs", _runs(report), opened=True)
        + _note("Graph breaks", breaks, number=len(report.breaks), opened=True)
        + _note("Recompiles", recompiles, number=len(report.recompiles), opened=True)
        + _note("Guards, by the line that needed them", guards, number=len(report.guards))
    )


def _times(number: int) -> str:
    return "" if number == 1 else f" <span class='times'>{number} times</span>"


def _runs(report: CompileReport) -> list[str]:
    """Specialisations, in the order in which calls try them, each with its graphs and breaks."""
    graphs = {graph.name: (number, graph) for number, graph in enumerate(report.graphs)}
    return [_run(run, graphs) for run in report.runs]


def _run(run: RunFact, graphs: Mapping[str, tuple[int, GraphReport]]) -> str:
    parts = [f"for <code>{_text(given(run))}</code>"]
    if run.made_for:
        parts.append(f"<p class='where'>made because {_text(run.made_for)}</p>")
    for name in run.graphs:
        number, graph = graphs[name]
        parts.append(
            f"<p><a href='#graph{number}'>{_text(name)}</a> {_badge(graph)} "
            f"<span class='where'>{_text(run.lines)}</span></p>"
        )
    if run.ends_at is not None:
        parts.append(
            f"<p>then Python, because of <code>{_text(run.ends_at.code)}</code> "
            f"<span class='where'>{_text(run.ends_at.line)}</span></p>"
        )
    if not run.graphs and run.ends_at is None:
        parts.append("<p>Python: there are no tensor operations</p>")
    if run.then:
        parts.append(f"<ol>{''.join(_run(rest, graphs) for rest in run.then)}</ol>")
    return f"<li>{''.join(parts)}</li>"


def _badge(graph: GraphReport) -> str:
    kind = "eager" if graph.reason else graph.outcome
    return f'<span class="badge {_text(kind)}">{_text(graph.runs)}</span>'


def _note(title: str, items: list[str], *, number: int = 0, opened: bool = False) -> str:
    if not items:
        return ""
    state = " open" if opened else ""
    shown = number or len(items)
    return (
        f'<details class="notes"{state}><summary>{title} <span>{shown}</span></summary>'
        f"<ol>{''.join(items)}</ol></details>"
    )


def _graph(graph: GraphReport, number: int) -> str:
    panes = panes_of(graph.record)
    keys = {line: index for index, line in enumerate(user_lines(panes))}
    buttons = "".join(
        f'<button type="button" class="on" data-pane="{index}">{_text(pane.title)}</button>'
        for index, pane in enumerate(panes)
    )
    columns = "".join(_pane(pane, index, keys) for index, pane in enumerate(panes))
    reason = f'<p class="reason">{_text(graph.reason)}</p>' if graph.reason else ""
    reason += _passes(graph) + _images(graph) + _decided(graph) + _saved(graph)
    return (
        f'<section class="graph" id="graph{number}"><div class="graphhead">'
        f"<h2>{_text(graph.name)}</h2>{_badge(graph)}"
        f"<span class='facts'>{_text(_facts(graph))}</span>"
        f'<div class="toggles">{buttons}</div></div>{reason}'
        f'<div class="panes">{columns}</div></section>'
    )


def _passes(graph: GraphReport) -> str:
    """A table of the passes, each with the nodes that it changed."""
    changed = [each for each in graph.passes if each.rewrites or each.diff or each.left]
    if not changed:
        return ""
    rows = "".join(
        f"<tr><td class='size'>{_seconds(each.seconds)}</td>"
        f"<td><code>{_text(each.name)}</code></td><td>{each.rewrites}</td><td>{_text(_rules(each))}</td><td>{_diff(each)}</td></tr>"
        for each in changed
    )
    spent = _seconds(sum(each.seconds for each in graph.passes))
    told = f"{count(len(graph.passes), 'pass')}, {spent}".replace("passs", "passes")
    return (
        f"<details class='notes saved'><summary>Passes <span>{told}</span></summary>"
        "<table><thead><tr><th>time</th><th>pass</th><th>rewrites</th><th>rules</th>"
        f"<th>changes</th></tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _rules(done: PassFact) -> str:
    return ", ".join([*(f"{rule} ×{n}" for rule, n in done.matches.items()), *done.left])


def _diff(done: PassFact) -> str:
    """What a pass changed: how many calls of which operators, and the nodes."""
    if not done.diff:
        return ""
    calls = ", ".join(f"{n:+} {operator}" for operator, n in done.changes.items())
    head = _text(calls or count(len(done.diff), "line"))
    lines = _text("\n".join(done.diff))
    return f"<details><summary>{head}</summary><pre>{lines}</pre></details>"


def _images(graph: GraphReport) -> str:
    """A table of what became of the images, in the order of the graph."""
    if not graph.images:
        return ""
    rows = "".join(
        f"<tr><td><code>{_text(each.name)}</code></td><td>{_text(each.type)}</td>"
        f"<td>{_text(each.role.value)}</td><td>{_text(each.why)}</td>"
        f"<td class='where'>{_text(each.line)}</td></tr>"
        for each in graph.images
    )
    total = " · ".join(line.strip() for line in graph.images_total.splitlines())
    return (
        f"<details class='notes saved'><summary>Layouts <span>{_text(total)}</span></summary>"
        "<table><thead><tr><th>value</th><th>type</th><th>lies</th><th>why</th><th>line</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></details>"
    )


def _decided(graph: GraphReport) -> str:
    """All decisions of the scheduler with their reasons."""
    if not graph.decisions:
        return ""
    rows = "".join(
        f"<tr><td class='size'>{_text(f'{each.bytes_saved:,}')}</td>"
        f"<td>{'yes' if each.accepted else 'no'}</td><td>{_text(each.kind.value)}</td>"
        f"<td><code>{_text(' with '.join(filter(None, (each.first, each.second))))}</code></td>"
        f"<td>{_text(each.reason)}</td></tr>"
        for each in graph.decisions
    )
    return (
        "<details class='notes saved'><summary>Fusion and memory "
        f"<span>{_text(' · '.join(graph.planned))}</span></summary><table><thead><tr>"
        "<th>bytes</th><th>done</th><th>what</th><th>of</th><th>because</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></details>"
    )


def _saved(graph: GraphReport) -> str:
    """A table of what the graph saves for its backward, largest first."""
    if not graph.saved:
        return ""
    largest = max(each.bytes for each in graph.saved) or 1
    rows = "".join(
        f"<tr><td class='size'><i style='width:{100 * each.bytes / largest:.1f}%'></i>"
        f"{_text(f'{each.bytes:,}')}</td><td><code>{_text(each.name)}</code></td>"
        f"<td>{_text(each.type)}</td><td>{_text(each.why)}</td>"
        f"<td class='where'>{_text(each.line)}</td></tr>"
        for each in graph.saved
    )
    return (
        "<details class='notes saved'><summary>Saved for the backward "
        f"<span>{_text(graph.saved_total)}</span></summary><table><thead><tr><th>bytes</th>"
        "<th>value</th><th>type</th><th>why</th><th>line</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></details>"
    )


def _facts(graph: GraphReport) -> str:
    facts = [count(graph.operators, "torch operation")]
    if graph.record.schedule is not None:
        facts.append(f"{count(len(graph.kernels), 'kernel')}, {count(graph.launches, 'launch')}")
        facts.append(count(len(graph.external_calls), "external call"))
    if graph.unrounded:
        facts.append(unrounded(graph))
    if graph.python_reason:
        facts.append(f"Python launches the kernels: {graph.python_reason}")
    facts += as_torch(graph)
    facts += [graph.unaligned] if graph.unaligned else []
    if graph.run_failures:
        facts.append(graph.run_failures)
    if graph.pieces:
        facts.append(graph.pieces)
    if graph.cuda_graphs:
        facts.append(graph.cuda_graphs)
    facts += products(graph)
    facts += padded(graph)
    if graph.seconds:
        facts.append(_seconds(sum(graph.seconds.values())) + " to compile")
    if graph.cache_hit:
        facts.append("binary from the cache")
    return " · ".join(facts).replace("launchs", "launches")


def _pane(pane: Pane, index: int, keys: dict[str, int]) -> str:
    rows = [_row(line.text, line.origins, pane.language, keys) for line in pane.lines]
    body = "".join(rows[pane.preamble :])
    if pane.preamble:
        head = "".join(rows[: pane.preamble])
        body = (
            f"<details class='preamble'><summary>{pane.preamble} lines that every program has"
            f"</summary>{head}</details>{body}"
        )
    wide = " wide" if pane.language == "cpp" else ""
    return (
        f'<article class="pane{wide}" data-pane="{index}"><h3>{_text(pane.title)}'
        f"<span>{len(pane.lines)}</span></h3><div class='code'>{body}</div></article>"
    )


def _row(text: str, origins: tuple[str, ...], language: str, keys: dict[str, int]) -> str:
    shown = highlight(text, language) or " "
    if not origins:
        return f"<div>{shown}</div>"
    numbers = " ".join(str(keys[origin]) for origin in origins)
    hue = (keys[origins[0]] * 137) % 360  # the golden angle keeps neighbours apart
    title = _text("\n".join(origins))
    return f'<div data-k="{numbers}" style="--h:{hue}" title="{title}">{shown}</div>'
