"""How often passes and rules rewrite something in real models: `python -m benchmarks.rule_counts`.

The models are those of the tracer's suite (`transformers`, and `timm` and `torchvision` where these
are installed), tiny and with random weights. Each is captured once as it is for inference and once
as it is trained: each captured graph goes through all passes, those that round otherwise included,
and runs eagerly then. Nothing is generated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parent.parent
_TRACER = ROOT / "packages" / "bytecode-tracer"


@dataclass
class Found:
    """Of one kind of graphs: how many there are, and what was rewritten in them."""

    models: int = 0
    graphs: int = 0
    nodes: int = 0
    seconds: float = 0.0
    rewrites: Counter[str] = field(default_factory=Counter)
    """By pass, and by pass and rule."""
    in_models: Counter[str] = field(default_factory=Counter)
    """In how many models, likewise."""
    failures: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Count what another has found, too."""
        self.models += other.models
        self.graphs += other.graphs
        self.nodes += other.nodes
        self.seconds += other.seconds
        self.rewrites += other.rewrites
        self.in_models += other.in_models
        self.failures += other.failures


def count(name: str, model: torch.nn.Module, inputs: dict[str, Any], found: Found) -> None:
    """Add what is rewritten in one model."""
    import plait

    here: Counter[str] = Counter()
    sizes: list[int] = []

    def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        nodes, seconds = _through_passes(gm, examples, here)
        sizes.append(nodes)
        found.seconds += seconds
        return gm.forward

    try:
        plait.compile(model, backend=backend)(**inputs)
    except Exception as error:
        found.failures.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
        return
    found.models += 1
    found.graphs += len(sizes)
    found.nodes += sum(sizes)
    found.rewrites += here
    found.in_models.update(here.keys())


def _through_passes(
    gm: fx.GraphModule, examples: Sequence[Any], here: Counter[str]
) -> tuple[int, float]:
    """Nodes of the ATen graph and seconds of the passes; what they rewrite is added to `here`."""
    from plait_fx_passes import NoGradientsError, PassRecord, run_passes, to_aten, to_joint
    from plait_fx_passes.passes import LAYOUT_PASSES, LOOP_PASSES, NUMERIC_PASSES

    def note(record: PassRecord) -> None:
        name = record.name.removesuffix("-after-rules").removesuffix("-after-selections")
        if record.rewrites:
            here[name] += record.rewrites
        for rule, times in record.matches.items():
            here[f"{name}: {rule}"] += times

    try:
        graph = to_joint(gm, examples).flat() if torch.is_grad_enabled() else to_aten(gm, examples)
    except NoGradientsError:
        graph = to_aten(gm, examples)
    started = time.perf_counter()
    run_passes(graph, (*NUMERIC_PASSES, *LOOP_PASSES, *LAYOUT_PASSES), observer=note)
    return len(graph.graph.nodes), time.perf_counter() - started


def measure(chosen: Sequence[str], limit: int | None, processes: int) -> dict[str, Found]:
    """For inference and for training."""
    names = [name for name in _zoo() if not chosen or any(each in name for each in chosen)]
    found = {"inference": Found(), "training": Found()}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name, of_model in zip(names, pool.imap(_of_model, names[:limit]), strict=False):
            print(name, file=sys.stderr, flush=True)
            for kind, result in found.items():
                result.add(of_model[kind])
    return found


def _zoo() -> dict[str, Any]:
    """The models of the tracer's suite by name."""
    if str(_TRACER) not in sys.path:
        sys.path.insert(0, str(_TRACER))
    from suites.zoo import MODELS

    models: dict[str, Any] = MODELS
    return models


def _of_model(name: str) -> dict[str, Found]:
    """What one model adds."""
    torch.set_num_threads(1)
    entry = _zoo()[name]
    found = {"inference": Found(), "training": Found()}
    for kind, result in found.items():
        torch.manual_seed(0)
        try:
            model, inputs = entry.build(), entry.inputs(0)
        except Exception as error:  # the library here may not have it
            result.failures.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
            continue
        model.train(kind == "training")
        with torch.set_grad_enabled(kind == "training"):
            count(name, model, _moved(inputs), result)
    return found


def _moved(inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments; tensors of numbers need no gradients of their own."""
    for each in tree_leaves(inputs):
        if isinstance(each, torch.Tensor):
            each.requires_grad_(False)
    return inputs


def markdown(found: dict[str, Found]) -> str:
    """A row for each pass and rule."""
    names = sorted(set().union(*(each.rewrites for each in found.values())))
    total = [f"{each.models} models, {each.graphs} graphs, {each.nodes:,} nodes" for each in
             found.values()]  # fmt: skip
    lines = [
        "| pass: rule | " + " | ".join(f"{kind}: rewrites | in models" for kind in found) + " |",
        "|---|" + "---:|---:|" * len(found),
    ]
    for name in names:
        cells = [f"{each.rewrites[name]:,} | {each.in_models[name]}" for each in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    heads = [f"{kind}: {text}." for kind, text in zip(found, total, strict=True)]
    per_node = [
        f"{kind}: {1e3 * each.seconds / max(each.nodes, 1):.3f} ms a node."
        for kind, each in found.items()
    ]
    failed = [f"- {kind}, {text}" for kind, each in found.items() for text in each.failures]
    return "\n".join(
        [*heads, *per_node, "", *lines, *(["", "Not captured:", *failed] if failed else [])]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rule_counts", description=__doc__)
    parser.add_argument("models", nargs="*", help="parts of names; all if none")
    parser.add_argument("--limit", type=int, help="so many models at most")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--processes", type=int, default=1, help="side by side")
    options = parser.parse_args()
    text = markdown(measure(options.models, options.limit, options.processes))
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
