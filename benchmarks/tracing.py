"""Seconds of bytecode tracing alone: `python -m benchmarks.tracing`.

Models of `transformers` with a growing number of layers, traced by plait and by
`torch.compile`, each in fresh processes that take turns; the backends do nothing. *First*
is a process's first trace, *again* a trace of a second model of the same kind after it.
*Calls* counts the calls of functions that plait's trace makes, which no noise touches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.runner import ROOT, fresh_caches

MODELS = ("bert", "gpt2", "llama")
SYSTEMS = ("plait", "torch.compile")
_WIDTHS = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000}


def make(name: str, layers: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A narrow model with so many layers, and what it is called with."""
    import transformers as library

    torch.manual_seed(0)
    model: torch.nn.Module
    if name == "gpt2":
        config = library.GPT2Config(n_embd=64, n_head=4, n_layer=layers, vocab_size=1000)
        model = library.GPT2LMHeadModel(config)
    elif name == "bert":
        wide = {**_WIDTHS, "intermediate_size": 256, "num_hidden_layers": layers}
        model = library.BertModel(library.BertConfig(**wide))
    else:
        wide = {**_WIDTHS, "intermediate_size": 256, "num_hidden_layers": layers}
        model = library.LlamaForCausalLM(library.LlamaConfig(**wide))
    return model.eval(), {"input_ids": torch.randint(0, 1000, (2, 32))}


def _plait_seconds(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    from plait_bytecode_tracer import CompiledFunction, compile_module

    made: list[CompiledFunction] = []

    def compiled(function: Any) -> CompiledFunction:
        made.append(CompiledFunction(function, lambda graph, inputs, capture: graph.forward))
        return made[-1]

    with torch.no_grad():
        compile_module(model, compiled)(**inputs)
    (function,) = (found for found in made if found.entries)
    assert not function.breaks, function.breaks
    return float(function.profile.seconds()["trace"])


def _dynamo_seconds(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    from torch._dynamo.utils import compilation_time_metrics

    before = len(compilation_time_metrics.get("bytecode_tracing", ()))
    backend: Callable[..., Any] = lambda graph, inputs: graph.forward  # noqa: E731  # as passed
    with torch.no_grad():
        torch.compile(model, backend=backend)(**inputs)
    return float(sum(compilation_time_metrics["bytecode_tracing"][before:]))


def measure(system: str, name: str, layers: int) -> dict[str, float]:
    """In this process: seconds of two traces, each of a model of its own."""
    seconds = _plait_seconds if system == "plait" else _dynamo_seconds
    first = seconds(*make(name, layers))
    torch.compiler.reset()
    return {"first": first, "again": seconds(*make(name, layers))}


def count_calls(name: str, layers: int) -> int:
    """How many calls, of Python and C functions, the second trace in a process makes."""
    _plait_seconds(*make(name, layers))
    model, inputs = make(name, layers)
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        _plait_seconds(model, inputs)
    finally:
        sys.setprofile(None)
    return count


def _in_process(words: list[str], environment: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "benchmarks.tracing", *words]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def compare(names: list[str], layers: list[int], rounds: int) -> dict[str, Any]:
    """Medians over fresh processes by model, layers and system, and the calls of plait."""
    found: dict[str, Any] = {}
    with fresh_caches() as environment:
        environment = {**environment, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as wherever packages are installed
        for name in names:
            # Python compiles what it has not compiled before, and keeps it.
            for system in SYSTEMS:
                _in_process(["--measure", system, name, "1"], environment)
            for count in layers:
                results: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
                for _ in range(rounds):
                    for system in SYSTEMS:
                        words = ["--measure", system, name, str(count)]
                        results[system].append(_in_process(words, environment))
                row: dict[str, Any] = {
                    system: {
                        kind: statistics.median(result[kind] for result in taken)
                        for kind in ("first", "again")
                    }
                    for system, taken in results.items()
                }
                row["calls"] = _in_process(["--count", name, str(count)], environment)
                found[f"{name}, {count} layers"] = row
    return found


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| model | plait first | torch.compile first | ratio | plait again "
        "| torch.compile again | ratio | calls |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, row in found.items():
        cells = [title]
        for kind in ("first", "again"):
            ours, theirs = row["plait"][kind], row["torch.compile"][kind]
            cells += [f"{1e3 * ours:.0f} ms", f"{1e3 * theirs:.0f} ms", f"{ours / theirs:.2f}"]
        lines.append(f"| {' | '.join([*cells, str(row['calls'])])} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing", description=__doc__)
    parser.add_argument("models", nargs="*", default=[], help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--count", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        system, name, layers = options.measure
        print(json.dumps(measure(system, name, int(layers))))
    elif options.count:
        print(json.dumps(count_calls(options.count[0], int(options.count[1]))))
    else:
        found = compare(options.models or list(MODELS), options.layers, options.rounds)
        print(table(found))
        if options.json:
            with open(options.json, "w") as file:
                json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
