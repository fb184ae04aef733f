"""Seconds of tracing alone, by layers: `python -m benchmarks.tracing`.

Models of `transformers` with a growing number of layers, traced by plait and by `torch.compile`;
the backends do nothing. A process measures one model with all numbers of layers; processes take
turns. *First* is a process's first trace, of the fewest layers; *again* a trace of another model
of the same kind after it. *Joint* is what makes a forward and a backward graph of the captured
one: `to_joint`, the passes and the partition of plait, AOTAutograd of torch. *Calls* counts the
calls of functions that plait's bytecode trace makes, and its joint trace: no noise touches these.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.growth_chart import growth
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
    return model.train(), {"input_ids": torch.randint(0, 1000, (2, 32))}


def _plait(model: torch.nn.Module, inputs: dict[str, torch.Tensor], joins: bool) -> dict[str, Any]:
    """Of a training model: seconds of the trace and, if it `joins`, of the joint graph."""
    from plait_bytecode_tracer import CompiledFunction, compile_module
    from plait_fx_passes import partition, run_passes, to_joint

    made: list[CompiledFunction] = []
    found: dict[str, Any] = {}

    def backend(graph: Any, examples: Any, capture: Any) -> Callable[..., Any]:
        run: Callable[..., Any] = graph.forward
        if not joins:
            return run
        start = time.perf_counter()
        joint = to_joint(graph, examples)
        partition(joint.replace_graph(run_passes(joint.flat()).graph))
        found["joint"] = time.perf_counter() - start
        found["joint calls"] = _calls(lambda: to_joint(graph, examples))
        return run

    def compiled(function: Any) -> CompiledFunction:
        made.append(CompiledFunction(function, backend))
        return made[-1]

    compile_module(model, compiled)(**inputs)
    (function,) = (each for each in made if each.entries)
    assert not function.breaks, function.breaks
    return {"trace": float(function.profile.seconds()["trace"]), **found}


def _torch(model: torch.nn.Module, inputs: dict[str, torch.Tensor], joins: bool) -> dict[str, Any]:
    from torch._dynamo.utils import compilation_time_metrics

    names = {"trace": "bytecode_tracing"}
    if joins:
        names["joint"] = "create_aot_dispatcher_function"
    before = {name: len(compilation_time_metrics.get(name, ())) for name in names.values()}
    torch.compile(model, backend="aot_eager" if joins else "eager")(**inputs)
    return {
        kind: float(sum(compilation_time_metrics[name][before[name] :]))
        for kind, name in names.items()
    }


def _calls(run: Callable[[], object]) -> int:
    """How many functions, of Python and of C, a run calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def measure(system: str, name: str, layers: Sequence[int], joins: bool) -> dict[str, Any]:
    """In this process: a first trace of the fewest layers, then one of each number of layers.

    With `joins` also what follows: joint graphs, and calls; it takes several times as long.
    """
    seconds = _plait if system == "plait" else _torch
    first = seconds(*make(name, layers[0]), joins)
    found: dict[str, Any] = {"first": first["trace"]}
    for count in layers:
        torch.compiler.reset()
        found[str(count)] = seconds(*make(name, count), joins)
    if system == "plait" and joins:
        for count in layers:
            again = functools.partial(_plait, *make(name, count), False)
            found[str(count)]["calls"] = _calls(again)
    return found


def _in_process(words: Sequence[str], environment: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "benchmarks.tracing", *words]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def compare(names: Sequence[str], layers: Sequence[int], rounds: int) -> dict[str, Any]:
    """By model, number of layers and system: medians over fresh processes; of the first of them
    what follows a trace, too."""
    found: dict[str, Any] = {}
    with fresh_caches() as environment:
        environment = {**environment, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as wherever packages are installed
        for name in names:
            taken: dict[str, list[Any]] = {system: [] for system in SYSTEMS}
            for number in range(rounds):
                for system in SYSTEMS:
                    kind = "--measure-traces" if number else "--measure"
                    words = [kind, system, name, *map(str, layers)]
                    taken[system].append(_in_process(words, environment))
                    print(f"{name}, {system}: {len(taken[system])} of {rounds}", file=sys.stderr)
            found[name] = {str(count): _row(taken, str(count)) for count in layers}
            found[name][str(layers[0])]["first"] = {
                system: statistics.median(each["first"] for each in results)
                for system, results in taken.items()
            }
    return found


def _row(taken: dict[str, list[Any]], count: str) -> dict[str, Any]:
    whole = {system: results[0][count] for system, results in taken.items()}
    return {
        "trace": {
            system: statistics.median(each[count]["trace"] for each in results)
            for system, results in taken.items()
        },
        "joint": {system: found["joint"] for system, found in whole.items()},
        **{name: whole["plait"][name] for name in ("calls", "joint calls")},
    }


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    kinds = {"first": "first trace", "trace": "trace again", "joint": "joint"}
    head = ["model", "layers"]
    for title in kinds.values():
        head += [f"{title}: plait", "torch.compile", "ratio"]
    head += ["calls", "joint calls"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, rows in found.items():
        for count, row in rows.items():
            cells = [name, count]
            for kind in kinds:
                both = row.get(kind)
                if both is None:
                    cells += ["–"] * 3
                    continue
                ours, theirs = both["plait"], both["torch.compile"]
                cells += [f"{1e3 * ours:.0f} ms", f"{1e3 * theirs:.0f} ms", f"{ours / theirs:.2f}"]
            cells += [str(row["calls"]), str(row["joint calls"])]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing", description=__doc__)
    parser.add_argument("models", nargs="*", default=[], help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--svg", type=Path, help="draw seconds by layers into this file")
    parser.add_argument("--from-json", type=Path, help="show these results; run nothing")
    for hidden in ("--measure", "--measure-traces"):
        parser.add_argument(hidden, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure or options.measure_traces:
        system, name, *layers = options.measure or options.measure_traces
        numbers = list(map(int, layers))
        print(json.dumps(measure(system, name, numbers, joins=bool(options.measure))))
        return 0
    if options.from_json:
        found = json.loads(options.from_json.read_text())
    else:
        found = compare(options.models or MODELS, options.layers, options.rounds)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(growth(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
