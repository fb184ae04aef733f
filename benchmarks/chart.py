"""The results as one SVG picture: speed against eager, and seconds of cold compiling."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from typing import Any

from benchmarks.workloads import WORKLOADS

_COLOURS = {"plait": "#c2562d", "torch.compile": "#7d93b2"}
_ROW, _LABEL, _PANEL, _GAP = 44, 330, 330, 70

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #2a2c31; }
.soft { fill: #73767e; font-size: 12px; } .head { font-weight: 600; font-size: 14px; }
.axis { stroke: #8b8e96; stroke-width: 1; stroke-dasharray: 3 3; }
@media (prefers-color-scheme: dark) { text { fill: #dfe1e6; } .soft { fill: #9a9ea8; } }
"""


def chart(results: dict[str, Any]) -> str:
    """The picture, as text."""
    found = results["workloads"]
    shown = [w for w in WORKLOADS if "plait" in found.get(w.name, {})]
    height = 70 + _ROW * len(shown) + 20
    width = _LABEL + 2 * _PANEL + _GAP + 70
    speed = {w.name: _speedups(found[w.name]) for w in shown}
    cold = {w.name: _field(found[w.name], "cold", "compile_s") for w in shown}
    names = [w.name for w in shown]
    right = _LABEL + _PANEL + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>',
        *_legend(width),
        f'<text class="head" x="{_LABEL}" y="46">speed, times eager\'s (log scale)</text>',
        *_bars(_LABEL, names, speed, _log_scale(speed), "{:.2f}×"),
        f'<text class="head" x="{right}" y="46">cold compile, seconds</text>',
        *_bars(right, names, cold, _linear_scale(cold), "{:.1f} s"),
    ]
    for number, each in enumerate(shown):
        y = 70 + _ROW * number + 18
        parts.append(f'<text x="0" y="{y}">{html.escape(_short(each.title))}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _short(title: str) -> str:
    return title if len(title) < 50 else title[:48] + "…"


Values = dict[str, dict[str, float]]
Scale = Callable[[float], tuple[float, float]]
"""From a value to where its bar begins and ends, as shares of the panel."""


def _log_scale(values: Values) -> Scale:
    """Bars grow from 1: to the right where faster, to the left where slower."""
    logs = [math.log(v) for each in values.values() for v in each.values()] or [0.0]
    low, high = min(*logs, 0.0), max(*logs, 0.0)
    span = (high - low) or 1.0

    def place(value: float) -> tuple[float, float]:
        ends = sorted((-low / span, (math.log(value) - low) / span))
        return ends[0], ends[1]

    return place


def _linear_scale(values: Values) -> Scale:
    largest = max((v for each in values.values() for v in each.values()), default=1.0)
    return lambda value: (0.0, value / largest)


def _field(found: dict[str, Any], part: str, field: str) -> dict[str, float]:
    values = {system: found.get(system, {}).get(part, {}).get(field) for system in _COLOURS}
    return {system: float(value) for system, value in values.items() if value is not None}


def _speedups(found: dict[str, Any]) -> dict[str, float]:
    eager = found.get("eager", {}).get("steady", {}).get("step_ms")
    steps = _field(found, "steady", "step_ms")
    return {system: eager / step for system, step in steps.items()} if eager else {}


def _legend(width: int) -> list[str]:
    parts = []
    for number, (system, colour) in enumerate(_COLOURS.items()):
        x = width - 220 + 90 * number
        parts.append(f'<rect x="{x}" y="6" width="12" height="12" rx="3" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="17">{system}</text>')
    return parts


def _bars(left: int, names: list[str], values: Values, scale: Scale, form: str) -> list[str]:
    parts = []
    for number, name in enumerate(names):
        for row, (system, colour) in enumerate(_COLOURS.items()):
            value = values[name].get(system)
            if value is None:
                continue
            begin, end = (left + _PANEL * share for share in scale(value))
            y = 70 + _ROW * number + 15 * row
            parts.append(
                f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 1.5):.1f}" height="12" '
                f'rx="2" fill="{colour}"/>'
            )
            parts.append(
                f'<text class="soft" x="{end + 6:.1f}" y="{y + 10.5}">{form.format(value)}</text>'
            )
    return parts
