"""Passes, lowering and scheduling alone, by layers: `python -m benchmarks.lowering`.

A Llama of random weights with a growing number of layers, as a forward and a backward, and for
inference: milliseconds of what each stage makes of the graph of the stage before, in one process,
once warm and then the median of some rounds; per node of the ATen graphs that are lowered.
*Kernels* is how many there are in all: equal layers are lowered once.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.runner import machine
from benchmarks.tracing import make

T = TypeVar("T")

STAGES = ("passes", "lower", "schedule")


def captured(layers: int, *, trains: bool) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The torch-level graph of a model, and its example inputs."""
    from plait_bytecode_tracer import CompiledFunction, compile_module

    found: list[tuple[torch.fx.GraphModule, list[torch.Tensor]]] = []

    def backend(graph: Any, examples: Any, capture: Any) -> Callable[..., Any]:
        found.append((graph, list(examples)))
        run: Callable[..., Any] = graph.forward
        return run

    model, inputs = make("llama", layers)
    model.train(trains)
    with torch.set_grad_enabled(trains):
        compile_module(model, lambda function: CompiledFunction(function, backend))(**inputs)
    (graph,) = found
    return graph


def measure(layers: int, rounds: int, *, trains: bool) -> dict[str, Any]:
    """Milliseconds of each stage, and the nodes of the graphs that are lowered."""
    import plait_fx_passes as fx_passes
    from plait_ir_lowering import lower
    from plait_scheduler import plan

    program, examples = captured(layers, trains=trains)
    seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
    passes = (*fx_passes.DEFAULT_PASSES, *fx_passes.LOOP_PASSES, *fx_passes.LAYOUT_PASSES)
    nodes = kernels = 0
    with torch.set_grad_enabled(trains):
        recorded: Any = (fx_passes.to_joint if trains else fx_passes.to_aten)(program, examples)
    for number in range(rounds + 1):
        flat = recorded.flat() if trains else recorded
        gc.collect()
        improved, taken = _timed(lambda flat=flat: fx_passes.run_passes(flat, passes))
        spent = {"passes": taken}
        graphs = [improved]
        if trains:
            parts = fx_passes.partition(recorded.replace_graph(improved.graph))
            graphs = [parts.forward, parts.backward]
        nodes = sum(node.op == "call_function" for each in graphs for node in each.graph.nodes)
        kernels = 0
        for each in graphs:
            loops, taken = _timed(lambda each=each: lower(each.graph))
            spent["lower"] = spent.get("lower", 0.0) + taken
            planned, taken = _timed(lambda loops=loops: plan(loops))
            spent["schedule"] = spent.get("schedule", 0.0) + taken
            kernels += len(planned.program.kernels)
        if number:
            for stage in STAGES:
                seconds[stage].append(spent[stage])
    medians = {stage: 1e3 * statistics.median(each) for stage, each in seconds.items()}
    return {"nodes": nodes, "kernels": kernels, **medians}


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    """As `plait.compile` runs it, without full collections of garbage."""
    from plait_utils import postponed_collections

    with postponed_collections():
        start = time.perf_counter()
        made = run()
        return made, time.perf_counter() - start


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        f"{machine()['cpu']}, one thread; milliseconds, and in brackets microseconds a node.",
        "",
        "| graph | layers | nodes | kernels | passes | lowering | scheduling | both, ms a node |",
        "|---|" + "---:|" * 7,
    ]
    for label, row in found.items():
        kind, _, layers = label.partition(" ")
        cells = [kind, layers, str(row["nodes"]), str(row["kernels"])]
        cells += [f"{row[s]:.1f} ({1e3 * row[s] / row['nodes']:.0f})" for s in STAGES]
        cells.append(f"{(row['lower'] + row['schedule']) / row['nodes']:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lowering", description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for trains in (False, True):
        for layers in chosen.layers:
            label = f"{'training' if trains else 'inference'} {layers}"
            found[label] = measure(layers, chosen.rounds, trains=trains)
            print(f"{label}: {found[label]}", file=sys.stderr, flush=True)
    print(table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    if chosen.markdown:
        chosen.markdown.write_text(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
