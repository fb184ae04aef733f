"""Results as tables: for a terminal, and as Markdown for the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.workloads import WORKLOADS
from benchmarks.wrapper import SYSTEMS as WRAPPERS

COLUMNS = (
    *("eager ms", "plait ms", "torch.compile ms", "over eager", "over torch.compile"),
    *("plait cold s", "torch.compile cold s", "ratio", "plait warm s", "torch.compile warm s"),
    *("eager MB", "plait MB", "torch.compile MB", "eager error", "plait error"),
    *("graphs", "breaks", "kernels", "run eagerly"),
)


def rows_of(results: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """A title and the cells of each workload."""
    titles = {workload.name: workload.title for workload in WORKLOADS}
    return [(titles[name], _cells(found)) for name, found in results["workloads"].items()]


def _cells(found: dict[str, Any]) -> list[str]:
    if "skipped" in found:
        return [found["skipped"], *[""] * (len(COLUMNS) - 1)]

    def get(system: str, part: str, field: str) -> float | None:
        value = found.get(system, {}).get(part, {}).get(field)
        return None if value is None else float(value)

    eager, plait, peer = (
        get(system, "steady", "step_ms") for system in ("eager", "plait", "torch.compile")
    )
    cold = [get(system, "cold", "compile_s") for system in ("plait", "torch.compile")]
    warm = [get(system, "warm", "compile_s") for system in ("plait", "torch.compile")]
    peaks = [get(system, "warm", "peak_mb") for system in ("eager", "plait", "torch.compile")]
    errors = [get(system, "steady", "error") for system in ("eager", "plait")]
    return [
        *(_number(each) for each in (eager, plait, peer)),
        *(_ratio(eager, plait), _ratio(peer, plait)),
        *(_number(each) for each in cold),
        _ratio(cold[1], cold[0]),
        *(_number(each) for each in warm),
        *("–" if each is None else f"{each:.0f}" for each in peaks),
        *("–" if each is None else f"{each:.1e}" for each in errors),
        *_captured(found.get("plait", {}).get("cold", {})),
    ]


def _captured(facts: dict[str, Any]) -> list[str]:
    """What plait made of the workload: a row without graphs or kernels is eager's own speed."""
    eager = facts.get("eager_graphs")
    counts = [str(facts.get(name, "–")) for name in ("graphs", "breaks", "kernels")]
    return [*counts, "–" if eager is None else str(len(eager))]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _ratio(slower: float | None, faster: float | None) -> str:
    return "–" if slower is None or not faster else f"{slower / faster:.2f}×"


def print_tables(console: Console, results: dict[str, Any]) -> None:
    """The tables of the results on a terminal."""
    rows = rows_of(results)
    _print(console, "Steady state, milliseconds a step", COLUMNS[:5], [(t, c[:5]) for t, c in rows])
    _print(console, "First call, seconds", COLUMNS[5:10], [(t, c[5:10]) for t, c in rows])
    _print(
        console,
        "Peak memory of the process while running, and largest error against float64",
        COLUMNS[10:15],
        [(t, c[10:15]) for t, c in rows],
    )
    _print(console, "What plait captured", COLUMNS[15:], [(t, c[15:]) for t, c in rows])
    if results.get("overhead"):
        title = "Guards and dispatch alone, µs a call"
        _print(console, title, *_overhead(results["overhead"], ("plait", "torch.compile")))
    if results.get("wrapper"):
        title = "Forward and backward of a tiny network, µs, by what runs the programs"
        _print(console, title, *_overhead(results["wrapper"], WRAPPERS))
    for name, system, failure in failures(results):
        console.print(f"[red]{name}, {system}: {failure}[/]")


def _overhead(
    found: dict[str, Any], columns: Sequence[str]
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    systems = [s for s in columns if any(s in each for each in found.values())]
    rows = [
        (f"{layers} Linear layers", [_number(facts.get(system)) for system in systems])
        for layers, facts in found.items()
    ]
    return systems, rows


def _print(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[tuple[str, list[str]]]
) -> None:
    table = Table("workload", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for name, cells in rows:
        table.add_row(name, *cells)
    console.print(table)


def failures(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Workload, system and message of every measurement that failed."""
    return [
        (name, f"{system} ({part})", facts["failure"])
        for name, found in results["workloads"].items()
        if "skipped" not in found
        for system, parts in found.items()
        for part, facts in parts.items()
        if "failure" in facts
    ]


def markdown(results: dict[str, Any]) -> str:
    """The main table for a README."""
    picked = (0, 1, 2, 4, 5, 6, 7)
    head = ["workload", *(COLUMNS[i] for i in picked)]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(picked)]
    for title, cells in rows_of(results):
        lines.append("| " + " | ".join([title, *(cells[i] for i in picked)]) + " |")
    return "\n".join(lines)
