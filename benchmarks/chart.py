"""The results as one SVG picture: speed against eager, and seconds of cold compiling."""

from __future__ import annotations

import html
from typing import Any

from benchmarks.workloads import WORKLOADS

_COLOURS = {"plait": "#c2562d", "torch.compile": "#7d93b2"}
_ROW, _LABEL, _PANEL, _GAP = 44, 270, 330, 60

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #2a2c31; }
.soft { fill: #73767e; font-size: 12px; } .head { font-weight: 600; font-size: 14px; }
.axis { stroke: #8b8e96; stroke-width: 1; stroke-dasharray: 3 3; }
@media (prefers-color-scheme: dark) { text { fill: #dfe1e6; } .soft { fill: #9a9ea8; } }
"""


def chart(results: dict[str, Any]) -> str:
    """The picture, as text."""
    shown = [w for w in WORKLOADS if "plait" in results["workloads"].get(w.name, {})]
    found = results["workloads"]
    speed = {w.name: _speedups(found[w.name]) for w in shown}
    cold = {w.name: _field(found[w.name], "cold", "compile_s") for w in shown}
    height = 70 + _ROW * len(shown) + 20
    width = _LABEL + 2 * _PANEL + _GAP + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>',
        *_legend(width),
        *_panel("speed, times eager's", _LABEL, shown, speed, "{:.2f}×", baseline=1.0),
        *_panel(
            "cold compile, seconds", _LABEL + _PANEL + _GAP, shown, cold, "{:.1f} s", baseline=None
        ),
    ]
    for number, each in enumerate(shown):
        y = 70 + _ROW * number + 21
        parts.append(f'<text x="0" y="{y}">{html.escape(_short(each.title))}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _short(title: str) -> str:
    return title if len(title) < 41 else title[:39] + "…"


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


def _panel(
    title: str,
    left: int,
    shown: list[Any],
    values: dict[str, dict[str, float]],
    form: str,
    *,
    baseline: float | None,
) -> list[str]:
    largest = max((v for each in values.values() for v in each.values()), default=1.0)
    scale = _PANEL / max(largest, baseline or 0.0)
    parts = [f'<text class="head" x="{left}" y="46">{title}</text>']
    for number, each in enumerate(shown):
        for row, (system, colour) in enumerate(_COLOURS.items()):
            value = values[each.name].get(system)
            if value is None:
                continue
            y = 70 + _ROW * number + 15 * row
            length = max(value * scale, 1.0)
            parts.append(
                f'<rect x="{left}" y="{y}" width="{length:.1f}" height="12" rx="3" '
                f'fill="{colour}"/>'
            )
            text = form.format(value)
            parts.append(
                f'<text class="soft" x="{left + length + 6:.1f}" y="{y + 10.5}">{text}</text>'
            )
    if baseline is not None:
        x = left + baseline * scale
        bottom = 66 + _ROW * len(shown)
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="60" x2="{x:.1f}" y2="{bottom}"/>')
    return parts
