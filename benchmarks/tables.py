"""Results as tables: for a terminal, and as Markdown for the README."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.means import (
    COLD,
    EAGER,
    MEMORY,
    STEADY,
    WARM,
    Found,
    number,
    share_of_copy,
    summaries,
)
from benchmarks.workloads import WORKLOADS
from benchmarks.wrapper import SYSTEMS as WRAPPERS

Value = Callable[[Found], "float | None"]


@dataclass(frozen=True)
class Column:
    """A value of each row, and how it is written."""

    title: str
    value: Value
    form: Callable[[float], str]

    def cell(self, found: Found) -> str:
        """The value of a row as text."""
        value = self.value(found)
        return "–" if value is None else self.form(value)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}×" if value < 10 else f"{value:.1f}×"


def _of(system: str, part: str, field: str) -> Value:
    return lambda found: number(found, system, part, field)


def _count(field: str) -> Value:
    """What plait made of a row: one without graphs or kernels is eager's own speed."""

    def value(found: Found) -> float | None:
        counted = found.get("plait", {}).get("cold", {}).get(field)
        return len(counted) if isinstance(counted, list) else counted

    return value


_STEADY = (
    *(Column(f"{s} ms", _of(s, "steady", "step_ms"), _number) for s in ("eager", "plait")),
    Column("torch.compile ms", _of("torch.compile", "steady", "step_ms"), _number),
    Column("over eager", EAGER, _ratio),
    Column("over torch.compile", STEADY, _ratio),
    Column("of copy", share_of_copy, lambda share: f"{share:.0%}"),
)
_FIRST = (
    Column("plait cold s", _of("plait", "cold", "compile_s"), _number),
    Column("torch.compile cold s", _of("torch.compile", "cold", "compile_s"), _number),
    Column("ratio", COLD, _ratio),
    Column("plait warm s", _of("plait", "warm", "compile_s"), _number),
    Column("torch.compile warm s", _of("torch.compile", "warm", "compile_s"), _number),
    Column("ratio", WARM, _ratio),
)
_MEMORY = tuple(
    Column(f"{s} MB", _of(s, "warm", "peak_mb"), "{:.0f}".format)
    for s in ("eager", "plait", "torch.compile")
)
_ERRORS = (
    *(Column(f"{s} error", _of(s, "steady", "error"), "{:.1e}".format) for s in ("eager", "plait")),
    *(
        Column(f"{s} gradients", _of(s, "steady", "gradient_error"), "{:.1e}".format)
        for s in ("eager", "plait")
    ),
)
_CAPTURED = tuple(
    Column("run eagerly" if field == "eager_graphs" else field, _count(field), "{:.0f}".format)
    for field in ("graphs", "breaks", "kernels", "eager_graphs")
)
_TABLES = (
    ("Steady state, milliseconds a step", _STEADY),
    ("First call, seconds", _FIRST),
    ("Peak memory of the process while running", (*_MEMORY, Column("ratio", MEMORY, _ratio))),
    ("Largest error against float64; of gradients, by their norms", _ERRORS),
    ("What plait captured", _CAPTURED),
)


def rows_of(results: Found, columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """A title and the cells of each workload."""
    rows = []
    for workload in WORKLOADS:
        found = results["workloads"].get(workload.name)
        if found is None:
            continue
        if "skipped" in found:
            rows.append((workload.title, [found["skipped"], *[""] * (len(columns) - 1)]))
        else:
            rows.append((workload.title, [column.cell(found) for column in columns]))
    return rows


def print_tables(console: Console, results: Found) -> None:
    """The tables of the results on a terminal."""
    for title, columns in _TABLES:
        _print(console, title, [each.title for each in columns], rows_of(results, columns))
    _print(console, "Of all rows", _MEANS, _means(results))
    for title, systems, rows in _beside(results):
        _print(console, title, systems, rows)
    for name, system, failure in failures(results):
        console.print(f"[red]{name}, {system}: {failure}[/]")


_MEANS = ("rows", "geometric mean", "worst", "where")


def _means(results: Found) -> list[tuple[str, list[str]]]:
    return [
        (each.title, [str(each.rows), _ratio(each.mean), _ratio(each.worst), each.worst_title])
        for each in summaries(results)
    ]


def _beside(results: Found) -> list[tuple[str, list[str], list[tuple[str, list[str]]]]]:
    """The tables of what a call costs beside the work: title, columns and rows."""
    asked = (
        ("overhead", "guards and dispatch alone, µs a call", ("plait", "torch.compile")),
        ("wrapper", "forward and backward of a tiny network, µs, by what runs it", WRAPPERS),
    )
    return [
        (title, *_overhead(results[key], columns))
        for key, title, columns in asked
        if results.get(key)
    ]


def _overhead(
    found: dict[str, Any], columns: Sequence[str]
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    systems = [s for s in columns if any(s in each for each in found.values())]
    rows = [
        (
            f"{layers} Linear layer{'' if layers == '1' else 's'}",
            ["–" if s not in facts else _number(facts[s]) for s in systems],
        )
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


def markdown(results: Found) -> str:
    """The README's tables: means, each row, and calls alone."""
    columns = [*_STEADY, *_FIRST, *_MEMORY[1:]]
    tables = [
        _markdown("of all rows", _MEANS, _means(results)),
        _markdown("workload", [each.title for each in columns], rows_of(results, columns)),
        *(_markdown(title, columns, rows) for title, columns, rows in _beside(results)),
    ]
    return "\n\n".join(tables)


def _markdown(
    corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]
) -> str:
    lines = ["| " + " | ".join([corner, *columns]) + " |", "|---|" + "---:|" * len(columns)]
    return "\n".join(
        [*lines, *("| " + " | ".join([title, *cells]) + " |" for title, cells in rows)]
    )
