"""Cold compile by layers: `python -m benchmarks.growth --svg docs/growth.svg`.

A Llama of 2 to 32 layers is compiled by plait in fresh processes with empty caches. The picture
shows the first call's seconds less the second's, with the straight line that fits them best, and
the number of different kernels: equal layers share them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import compile_facts
from benchmarks.runner import ROOT, fresh_caches, machine
from benchmarks.workloads import Case
from benchmarks.workloads.language import llama

LAYERS = (2, 4, 8, 16, 32)
_COLOUR = "#c2562d"
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 330, 230, 50, 50, 90

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #2a2c31; }
.soft { fill: #73767e; font-size: 12px; } .head { font-weight: 600; font-size: 14px; }
.grid { stroke: #8b8e96; stroke-width: 0.5; fill: none; }
.dashed { stroke: #8b8e96; stroke-width: 1; stroke-dasharray: 5 4; fill: none; }
@media (prefers-color-scheme: dark) { text { fill: #dfe1e6; } .soft { fill: #9a9ea8; } }
"""


def case_of(layers: int) -> Case:
    """The Llama of the main table with another number of layers."""
    torch.manual_seed(0)
    return llama(num_hidden_layers=layers)


def measured(rounds: int) -> dict[str, dict[str, Any]]:
    """By layers: medians of some cold compiles, and the kernels. The depths take turns."""
    found: dict[int, list[dict[str, Any]]] = {layers: [] for layers in LAYERS}
    for _ in range(rounds):
        for layers, runs in found.items():
            runs.append(_cold(layers))
    return {str(layers): _medians(runs) for layers, runs in found.items()}


def _medians(found: list[dict[str, Any]]) -> dict[str, Any]:
    stages = {
        stage: statistics.median(each["stages_s"].get(stage, 0.0) for each in found)
        for stage in found[0]["stages_s"]
    }
    return {
        "compile_s": statistics.median(each["compile_s"] for each in found),
        "stages_s": stages,
        "kernels": found[0]["kernels"],
    }


def _cold(layers: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.growth", "--one", str(layers)]
    with fresh_caches() as environment:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def picture(found: dict[str, dict[str, Any]]) -> str:
    """Both panels as one SVG text. `found`: facts by number of layers."""
    width, height = _LEFT + 2 * _WIDTH + _GAP + 30, _TOP + _HEIGHT + 50
    seconds = {int(n): float(each["compile_s"]) for n, each in found.items()}
    kernels = {int(n): float(each["kernels"]) for n, each in found.items()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>',
        *_panel("cold compile, seconds", seconds, _LEFT, "{:.2f}", with_line=True),
        *_panel("different kernels", kernels, _LEFT + _WIDTH + _GAP, "{:.0f}", with_line=False),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    title: str, values: dict[int, float], left: int, form: str, *, with_line: bool
) -> Iterator[str]:
    line = _line(values) if with_line else {}
    bottom, deepest = _TOP + _HEIGHT, max(values)
    most = 1.1 * max(*values.values(), *line.values())

    def at(layers: int, value: float) -> tuple[float, float]:
        return left + _WIDTH * layers / deepest, bottom - _HEIGHT * value / most

    yield f'<text class="head" x="{left}" y="{_TOP - 20}">{title}</text>'
    yield f'<path class="grid" d="M{left} {_TOP}V{bottom}H{left + _WIDTH}"/>'
    yield f'<text class="soft" x="{left - 8}" y="{bottom + 4}" text-anchor="end">0</text>'
    yield (
        f'<text class="soft" x="{left + _WIDTH}" y="{bottom + 36}" text-anchor="end">layers</text>'
    )
    if line:
        yield f'<path class="dashed" d="{_path([at(*each) for each in line.items()])}"/>'
    points = [at(*each) for each in values.items()]
    yield f'<path d="{_path(points)}" fill="none" stroke="{_COLOUR}" stroke-width="2"/>'
    for (layers, value), (x, y) in zip(values.items(), points, strict=True):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_COLOUR}"/>'
        yield (
            f'<text class="soft" x="{x:.1f}" y="{y - 9:.1f}" text-anchor="middle">'
            f"{form.format(value)}</text>"
        )
        yield (
            f'<text class="soft" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{layers}</text>'
        )


def _line(values: dict[int, float]) -> dict[int, float]:
    """The straight line that is nearest by squares: from no layer to the deepest model."""
    slope, intercept = statistics.linear_regression(list(values), list(values.values()))
    return {layers: intercept + slope * layers for layers in (0, max(values))}


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def table(found: dict[str, dict[str, Any]]) -> str:
    """The same as Markdown, with the seconds of each stage."""
    stages = list(next(iter(found.values()))["stages_s"])
    lines = [
        "| layers | cold compile s | different kernels | " + " | ".join(stages) + " |",
        "|---:|---:|---:|" + "---:|" * len(stages),
    ]
    for layers, facts in found.items():
        seconds = " | ".join(f"{facts['stages_s'][stage]:.3f}" for stage in stages)
        lines.append(f"| {layers} | {facts['compile_s']:.2f} | {facts['kernels']} | {seconds} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, help="compile so many layers here, and say what it took")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each depth")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--svg", type=Path, help="draw them into this file")
    parser.add_argument("--from-json", type=Path, help="show these results; run nothing")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(compile_facts(case_of(chosen.one), "plait")))
        return 0
    if chosen.from_json:
        results = json.loads(chosen.from_json.read_text())
    else:
        results = {"machine": machine(), "layers": measured(chosen.rounds)}
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    if chosen.svg:
        chosen.svg.write_text(picture(results["layers"]), encoding="utf-8")
    print(table(results["layers"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
