"""The results as one SVG picture: speed against eager, and seconds of cold compiling."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.means import number
from benchmarks.workloads import KINDS, WORKLOADS, Workload

_COLOURS = {"plait": "#c2562d", "torch.compile": "#7d93b2"}
_ROW, _BAR, _HEAD, _TOP = 26, 10, 30, 62
"""The heights of a row, of a bar in it, of a kind's name, and of what stands above all."""
_LABEL, _PANEL, _GAP = 360, 330, 80

_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #2a2c31; }
.soft { fill: #73767e; font-size: 10px; } .head { font-weight: 600; font-size: 13px; }
.axis { stroke: #8b8e96; stroke-width: 1; stroke-dasharray: 3 3; }
@media (prefers-color-scheme: dark) { text { fill: #dfe1e6; } .soft { fill: #9a9ea8; } }
"""

Values = dict[str, float]
"""By system."""


def chart(results: dict[str, Any]) -> str:
    """The picture, as text."""
    found = results["workloads"]
    shown = [w for w in WORKLOADS if "plait" in found.get(w.name, {})]
    places, bottom = _places(shown)
    width, height = _LABEL + 2 * _PANEL + _GAP + 70, bottom + 12
    right = _LABEL + _PANEL + _GAP
    panels = (
        _Panel(_LABEL, "speed, times eager's (log scale)", _speedups, "{:.2f}×"),
        _Panel(right, "cold compile, seconds (log scale)", _cold_seconds, "{:.2g} s"),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>',
        *_legend(width),
    ]
    for panel in panels:
        values = {name: panel.value(found[name]) for name in places}
        parts += _drawn(panel, values, places, bottom)
    for kind in KINDS:
        of_kind = [places[w.name] for w in shown if w.kind == kind]
        if of_kind:
            parts.append(f'<text class="head" x="0" y="{min(of_kind) - 8}">{kind}</text>')
    for each in shown:
        y = places[each.name] + 14
        parts.append(f'<text x="0" y="{y}">{html.escape(_short(each.title))}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _places(shown: Sequence[Workload]) -> tuple[dict[str, int], int]:
    """Where each row begins, the kinds one below the other, and where the last ends."""
    places, y = {}, _TOP
    for kind in KINDS:
        of_kind = [each for each in shown if each.kind == kind]
        y += _HEAD if of_kind else 0
        for each in of_kind:
            places[each.name] = y
            y += _ROW
    return places, y


def _short(title: str) -> str:
    return title if len(title) < 54 else title[:52] + "…"


@dataclass(frozen=True)
class _Panel:
    left: int
    title: str
    value: Callable[[dict[str, Any]], Values]
    form: str


def _speedups(found: dict[str, Any]) -> Values:
    eager = number(found, "eager", "steady", "step_ms")
    steps = _of_systems(found, "steady", "step_ms")
    return {system: eager / step for system, step in steps.items()} if eager else {}


def _cold_seconds(found: dict[str, Any]) -> Values:
    return _of_systems(found, "cold", "compile_s")


def _of_systems(found: dict[str, Any], part: str, field: str) -> Values:
    values = {system: number(found, system, part, field) for system in _COLOURS}
    return {system: value for system, value in values.items() if value}


def _drawn(
    panel: _Panel, values: dict[str, Values], places: dict[str, int], bottom: int
) -> Iterator[str]:
    """Bars that grow from 1: to the right where more, to the left where less."""
    logs = [math.log(v) for each in values.values() for v in each.values()] or [0.0]
    low, span = min(*logs, 0.0), (max(*logs, 0.0) - min(*logs, 0.0)) or 1.0

    def at(logarithm: float) -> float:
        return panel.left + _PANEL * (logarithm - low) / span

    one = f"{at(0.0):.1f}"
    yield f'<text class="head" x="{panel.left}" y="46">{panel.title}</text>'
    yield f'<path class="axis" d="M{one} {_TOP}V{bottom}"/>'
    for name, y in places.items():
        for row, (system, colour) in enumerate(_COLOURS.items()):
            value = values[name].get(system)
            if value is None:
                continue
            begin, end = sorted((at(0.0), at(math.log(value))))
            top = y + (_BAR + 1) * row
            yield (
                f'<rect x="{begin:.1f}" y="{top}" width="{max(end - begin, 1.5):.1f}" '
                f'height="{_BAR}" rx="2" fill="{colour}"/>'
                f'<text class="soft" x="{end + 5:.1f}" y="{top + 9}">'
                f"{panel.form.format(value)}</text>"
            )


def _legend(width: int) -> Iterator[str]:
    for number_of, (system, colour) in enumerate(_COLOURS.items()):
        x = width - 220 + 90 * number_of
        yield f'<rect x="{x}" y="6" width="12" height="12" rx="3" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="17">{system}</text>'
