"""Drawings of graphs."""

from __future__ import annotations

import json
from pathlib import Path
from xml.sax.saxutils import escape

from torch import fx

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.tools.drawing.boxes import COLOURS, Box, Boxes, boxes_of
from plait_fx_passes.tools.drawing.layout import Layout, place
from plait_fx_passes.training.joint_graph import JointGraph
from plait_utils import dataclass

_LETTER = 6.9
_HEIGHT = 38.0
_MARGIN = 16.0
_LEGEND = 26.0
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def draw(graph: AtenGraph | JointGraph | fx.GraphModule) -> Picture:
    """A drawing of a graph: one box for each node, with its arguments, type and user's line."""
    nodes = list(graph.graph.nodes)
    roles: dict[fx.Node, str] = {}
    if isinstance(graph, JointGraph):
        program = graph.program
        roles |= dict.fromkeys(program.results[graph.result_count :], "gradient")
        roles |= dict.fromkeys(program.placeholders[graph.input_count :], "tangent")
    return Picture(boxes_of(nodes, roles))


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing; :attr:`dot` for Graphviz, :meth:`svg` for browsers, needs no other program."""

    boxes: Boxes

    @property
    def dot(self) -> str:
        """The drawing in Graphviz's language."""
        lines = ["digraph {", '  node [shape=box style="rounded,filled" fontname=monospace]']
        for number, box in enumerate(self.boxes.boxes):
            fill, border = COLOURS[box.kind]
            label = json.dumps(box.title + (f"\n{box.type}" if box.type else ""))
            style = f'fillcolor="{fill}" color="{border}" tooltip={json.dumps(box.note)}'
            lines.append(f"  n{number} [label={label} {style}]")
        lines += [f"  n{start} -> n{end}" for start, end in self.boxes.edges]
        return "\n".join([*lines, "}"]) + "\n"

    def svg(self) -> str:
        """The drawing as SVG."""
        boxes = self.boxes.boxes
        widths = [20 + _LETTER * max(len(box.title), len(box.type)) for box in boxes]
        layout = place(widths, _HEIGHT, self.boxes.edges)
        legend = _legend([kind for kind in COLOURS if any(box.kind == kind for box in boxes)])
        width = max(layout.size[0], legend[1]) + 2 * _MARGIN
        height = layout.size[1] + 2 * _MARGIN + _LEGEND
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{_FONT}" font-size="11.5">',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
            '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 1 7 4 0 7z" fill="#94a3b8"/></marker>'
            "</defs>",
            f'<g transform="translate({_MARGIN:.0f} {_MARGIN:.0f})">{legend[0]}</g>',
            f'<g transform="translate({_MARGIN:.0f} {_MARGIN + _LEGEND:.0f})">',
            *_edges(layout),
            *map(_box, boxes, layout.places, widths),
            "</g></svg>",
        ]
        return "\n".join(parts) + "\n"

    def save(self, path: Path | str) -> Path:
        """Write the drawing; the file's suffix says how: ``.svg``, ``.dot`` or ``.gv``.

        Raises:
            ValueError: another suffix.
            OSError: the file cannot be written.
        """
        target = Path(path)
        if target.suffix not in (".svg", ".dot", ".gv"):
            raise ValueError(f"a drawing is .svg, .dot or .gv, not {target.name!r}")
        target.write_text(self.svg() if target.suffix == ".svg" else self.dot, encoding="utf-8")
        return target


def _box(box: Box, centre: tuple[float, float], width: float) -> str:
    fill, border = COLOURS[box.kind]
    x, y = centre
    lines = [(box.title, "#0f172a", "600"), (box.type, "#475569", "400")]
    shown = [line for line in lines if line[0]]
    first = y + (4 if len(shown) == 1 else -3)
    words = "".join(
        f'<text x="{x:.1f}" y="{first + 14 * n:.1f}" text-anchor="middle" fill="{colour}" '
        f'font-weight="{weight}">{escape(text)}</text>'
        for n, (text, colour, weight) in enumerate(shown)
    )
    return (
        f"<g><title>{escape(box.note)}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y - _HEIGHT / 2:.1f}" width="{width:.1f}" '
        f'height="{_HEIGHT:.0f}" rx="6" fill="{fill}" stroke="{border}"/>{words}</g>'
    )


def _edges(layout: Layout) -> list[str]:
    """Curves that leave a box at its lower side and enter the next at its upper one."""
    found = []
    for way in layout.ways:
        (x, y), *rest = way
        path = f"M{x:.1f} {y + _HEIGHT / 2:.1f}"
        y += _HEIGHT / 2
        for place_, (u, v) in enumerate(rest):
            end = v - _HEIGHT / 2
            middle = (y + end) / 2
            path += f"C{x:.1f} {middle:.1f} {u:.1f} {middle:.1f} {u:.1f} {end:.1f}"
            if place_ < len(rest) - 1:
                path += f"L{u:.1f} {v + _HEIGHT / 2:.1f}"
            x, y = u, v + _HEIGHT / 2
        found.append(f'<path d="{path}" fill="none" stroke="#94a3b8" marker-end="url(#to)"/>')
    return found


def _legend(kinds: list[str]) -> tuple[str, float]:
    """Coloured squares with words, and how wide they are."""
    at, parts = 0.0, []
    for kind in kinds:
        fill, border = COLOURS[kind]
        parts.append(
            f'<rect x="{at:.0f}" y="0" width="12" height="12" rx="3" fill="{fill}" '
            f'stroke="{border}"/><text x="{at + 17:.0f}" y="10" fill="#475569">{kind}</text>'
        )
        at += 30 + _LETTER * len(kind)
    return "".join(parts), at
