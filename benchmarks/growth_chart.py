"""Seconds by layers as one SVG picture: a panel for bytecode tracing, one for joint graphs."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

_COLOURS = {"plait": "#c2562d", "torch.compile": "#7d93b2"}
_DASHES = ("none", "7 4", "2 4")
_PANELS = {"trace": "bytecode tracing, ms", "joint": "joint graph and partition, ms"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 330, 230, 60, 70, 90

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #2a2c31; }
.soft { fill: #73767e; font-size: 12px; } .head { font-weight: 600; font-size: 14px; }
.grid { stroke: #8b8e96; stroke-width: 0.5; } .line { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { text { fill: #dfe1e6; } .soft { fill: #9a9ea8; } }
"""


def growth(found: dict[str, Any]) -> str:
    """The picture, as text.

    Args:
        found: by model, number of layers and kind ("trace", "joint"), seconds by system.
    """
    width = _LEFT + 2 * _WIDTH + _GAP + 30
    height = _TOP + _HEIGHT + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>',
        *_legend(list(found)),
    ]
    for number, (kind, title) in enumerate(_PANELS.items()):
        parts += _panel(found, kind, title, _LEFT + number * (_WIDTH + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _legend(models: Sequence[str]) -> list[str]:
    parts, x = [], _LEFT
    for system, colour in _COLOURS.items():
        parts.append(f'<rect x="{x}" y="6" width="12" height="12" rx="3" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="17">{system}</text>')
        x += 120
    for model, dash in zip(models, _DASHES, strict=False):
        parts.append(
            f'<path d="M{x} 12h34" class="line" stroke="#73767e" stroke-dasharray="{dash}"/>'
        )
        parts.append(f'<text x="{x + 42}" y="17">{html.escape(model)}</text>')
        x += 110
    return parts


def _panel(found: dict[str, Any], kind: str, title: str, left: int) -> list[str]:
    layers = sorted({int(count) for rows in found.values() for count in rows})
    times = [
        1e3 * value
        for rows in found.values()
        for row in rows.values()
        for value in row[kind].values()
    ]
    most, deepest, bottom = max(times), max(layers), _TOP + _HEIGHT

    def at(count: int, milliseconds: float) -> str:
        x = left + _WIDTH * count / deepest
        return f"{x:.1f} {bottom - _HEIGHT * milliseconds / most:.1f}"

    parts = [
        f'<text class="head" x="{left}" y="{_TOP - 20}">{title}</text>',
        f'<path class="grid" fill="none" d="M{left} {_TOP}V{bottom}H{left + _WIDTH}"/>',
        f'<text class="soft" x="{left - 8}" y="{_TOP + 4}" text-anchor="end">{most:.0f}</text>',
        f'<text class="soft" x="{left - 8}" y="{bottom + 4}" text-anchor="end">0</text>',
        f'<text class="soft" x="{left + _WIDTH}" y="{bottom + 36}" text-anchor="end">layers</text>',
    ]
    for count in layers:
        x = left + _WIDTH * count / deepest
        parts.append(
            f'<text class="soft" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{count}</text>'
        )
    for rows, dash in zip(found.values(), _DASHES, strict=False):
        for system, colour in _COLOURS.items():
            points = [at(int(n), 1e3 * row[kind][system]) for n, row in rows.items()]
            parts.append(
                f'<path class="line" stroke="{colour}" stroke-dasharray="{dash}" '
                f'd="M{" L".join(points)}"/>'
            )
            parts += [
                f'<circle cx="{point.split()[0]}" cy="{point.split()[1]}" r="3" fill="{colour}"/>'
                for point in points
            ]
    return parts
