"""What each pass and rule gains: `python -m benchmarks.rule_gains`.

A small program for each (`benchmarks.rule_programs`) runs with all passes, and with all but this
one, in turns: by ATen's kernels, as the library is used by itself, and as plait compiles it. The
table shows how many times as fast it is with the pass. Results of several machines are shown
together: `--from-json cpu.json gpu.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.rule_programs import PROGRAMS, Program, Tensors
from benchmarks.runner import machine

WAYS = ("aten", "plait")
_BATCH_SECONDS = 2e-3
"""At least so long is what the clock is read around."""
_CLEANUP = "-after-rules"

Run = Callable[[], object]


def time_program(program: Program, device: str, seconds: float) -> dict[str, Any]:
    """By way: microseconds of a call with the pass and without, and the rewrites of the pass."""
    inputs = program.inputs(device)
    found: dict[str, Any] = {}
    for way in [each for each in WAYS if program.only_by in (None, each)]:
        runs: dict[str, Run] = {}
        rewrites = 0
        try:
            for name, is_on in (("with", True), ("without", False)):
                make = _by_aten if way == "aten" else _by_plait
                run, count = make(program, inputs, is_on)
                run()
                runs[name], rewrites = run, max(rewrites, count)
        except Exception as error:  # one program's failure is a result, not the end
            found[way] = {"failure": f"{type(error).__name__}: {error}".splitlines()[0]}
            continue
        found[way] = {"us": _interleaved(runs, device, seconds), "rewrites": rewrites}
    return found


def _by_aten(program: Program, inputs: Tensors, is_on: bool) -> tuple[Run, int]:
    """The program's ATen graph, forward and backward at once where it trains, by ATen's kernels."""
    from plait_fx_passes import PassRecord, run_passes, to_aten, to_joint

    counts: dict[str, int] = {}

    def note(record: PassRecord) -> None:
        counts[record.name] = record.rewrites

    traced = torch.fx.symbolic_trace(program.function)
    if program.trains:
        graph = to_joint(traced, _with_gradients(inputs)).flat()
        given = [torch.ones_like(each, device=each.device) for each in graph.example_inputs]
        given = [*inputs, *(torch.ones(each.shape, device=each.device) for each in
                            given[len(inputs):])]  # fmt: skip
    else:
        graph, given = to_aten(traced, inputs), list(inputs)
    passes = _passes(program, is_on)
    if program.frozen:
        made = _held(graph, passes, note)
    else:
        made = run_passes(graph, passes, observer=note).module()

    def run() -> object:
        with torch.no_grad():
            return made(*given)

    return run, counts.get(program.pass_name, 0)


def _held(graph: Any, passes: tuple[Any, ...], note: Callable[[Any], None]) -> Callable[..., Any]:
    """A graph whose inputs are frozen but for the first, with what follows from these held."""
    from plait_fx_passes import can_freeze, run_passes, split_frozen

    frozen = (place for place in range(1, len(graph.inputs)) if can_freeze(graph, place))
    left = run_passes(dataclasses.replace(graph, frozen=tuple(frozen)), passes, observer=note)
    split = split_frozen(left)
    module = left.module() if split is None else split.program.module()
    return module if split is None else split.runner(module)


def _passes(program: Program, is_on: bool) -> tuple[Any, ...]:
    """What the library runs by itself, with the program's pass and without."""
    from plait_fx_passes import (
        DEFAULT_PASSES,
        FOLDING_PASSES,
        IN_PLACE_PASSES,
        KERNEL_PASSES,
        LAYOUT_PASSES,
        LOOP_PASSES,
        NUMERIC_PASSES,
        PACKING_PASSES,
        QUANTIZED_PASSES,
        SUM_PASSES,
    )

    first = NUMERIC_PASSES if _is_numeric(program) else DEFAULT_PASSES
    last = {
        "batches": KERNEL_PASSES,
        "in-place": IN_PLACE_PASSES,
        "near-uses": KERNEL_PASSES,
        "products-in-parts": IN_PLACE_PASSES,
        "vector-products": SUM_PASSES,
    }
    quantized = QUANTIZED_PASSES if program.pass_name == "quantized-products" else ()
    folds, packs = (FOLDING_PASSES, PACKING_PASSES) if program.frozen else ((), ())
    chosen = (*first, *LOOP_PASSES, *folds, *LAYOUT_PASSES, *packs, *quantized)
    chosen = (*chosen, *last.get(program.pass_name, ()))
    own = _own_pass(program)
    if own is None:
        return tuple(each for each in chosen if is_on or _base_name(each) != program.pass_name)
    others = [each for each in chosen if _base_name(each) != program.pass_name]
    behind = len(DEFAULT_PASSES)
    return (*others[:behind], *([own] if is_on else []), *others[behind:])


def _base_name(each: Any) -> str:
    return str(each.name).removesuffix(_CLEANUP)


def _own_pass(program: Program) -> Any | None:
    """The pass itself where no list has it, or with limits that any program is within."""
    from plait_fx_passes.passes import Limits, batching
    from plait_fx_passes.passes.batched import FAMILIES
    from plait_fx_passes.patterns import BATCHES_OF_ONE, rule_pass
    from plait_fx_passes.patterns.thin_products import Thin, thin_rules
    from plait_fx_passes.quantized.packed_weights import LOOP_ROWS
    from plait_fx_passes.quantized.passes import quantizing

    name, devices = program.pass_name, ("cpu", "cuda")
    if not program.anywhere:
        return BATCHES_OF_ONE if name == BATCHES_OF_ONE.name else None
    if name == "thin-products":
        thin = dict.fromkeys(devices, Thin(inner=1 << 30, results=1))
        return rule_pass(name, thin_rules(thin, thin))
    if name == "quantized-products":
        return quantizing(name, dict.fromkeys(devices, LOOP_ROWS["cpu"]))
    limits = {each.name: Limits(calls=1, elements=1 << 30) for each in FAMILIES}
    families = FAMILIES if name == "batches" else FAMILIES[:1]
    return batching(name, families, dict.fromkeys(devices, limits))


def _is_numeric(program: Program) -> bool:
    """Whether its pass is one of those that round otherwise, which are off by default."""
    from plait_fx_passes.passes import DEFAULT_PASSES, NUMERIC_PASSES

    name = program.pass_name
    if name in ("batches", "vector-products"):
        return True
    return name in {each.name for each in NUMERIC_PASSES} - {each.name for each in DEFAULT_PASSES}


def _by_plait(program: Program, inputs: Tensors, is_on: bool) -> tuple[Run, int]:
    """The program as plait compiles it, a step of forward and backward where it trains."""
    import plait

    name, own = program.pass_name, _own_pass(program)
    options: dict[str, Any] = {"numeric_rewrites": _is_numeric(program)}
    if own is not None:  # as a pass of one's own, under another name than plait's
        renamed = dataclasses.replace(own, name=f"{name}-here")
        options["user_passes"] = {"joint_first": [renamed] if is_on else []}
        options["disabled_passes"] = name if name in _plaits() else ""
        name = renamed.name
    elif not is_on:
        options["disabled_passes"] = name
    if program.frozen:
        compiled = plait.compile(_Frozen(program, inputs), options={**options, "freeze": True})
        given = inputs[:1]
    else:
        compiled = plait.compile(program.function, options=options)
        given = _with_gradients(inputs) if program.trains else inputs
    wanted = [each for each in given if each.requires_grad]

    def run() -> object:
        if not program.trains:
            with torch.no_grad():
                return compiled(*given)
        return torch.autograd.grad(compiled(*given), wanted)

    run()
    facts = [fact for graph in plait.report(compiled).graphs for fact in graph.record.passes]
    return run, sum(fact.rewrites for fact in facts if fact.name == name)


class _Frozen(torch.nn.Module):
    """A program with all inputs but the first as buffers."""

    def __init__(self, program: Program, inputs: Tensors) -> None:
        super().__init__()
        self.function = program.function
        for place, each in enumerate(inputs[1:]):
            self.register_buffer(f"buffer_{place}", each)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self._buffers.values())


def _plaits() -> set[str]:
    """The names of passes that can be switched off."""
    from plait_fx_passes import NUMERIC_PASSES, QUANTIZED_PASSES

    return {each.name for each in (*NUMERIC_PASSES, *QUANTIZED_PASSES)}


def _with_gradients(inputs: Tensors) -> Tensors:
    return tuple(
        each.detach().requires_grad_() if each.dtype.is_floating_point else each for each in inputs
    )


def _interleaved(runs: Mapping[str, Run], device: str, seconds: float) -> dict[str, float]:
    """What a tenth of batches, in turns, take at most: others share the machine."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    counts = {name: _calls_in_batch(run, wait) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(next(iter(times.values()))) < 7:
        for name, run in runs.items():
            times[name].append(_batch(run, counts[name], wait))
    return {name: round(1e6 * sorted(each)[len(each) // 10], 3) for name, each in times.items()}


def _batch(run: Run, count: int, wait: Callable[[], None]) -> float:
    """Seconds of a call."""
    wait()
    start = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - start) / count


def _calls_in_batch(run: Run, wait: Callable[[], None]) -> int:
    _batch(run, 2, wait)
    return max(1, int(_BATCH_SECONDS / max(_batch(run, 3, wait), 1e-7)))


def measure(names: Sequence[str], device: str, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for program in PROGRAMS:
        if names and program.name not in names:
            continue
        if program.only_on not in (None, device):
            continue
        print(program.name, file=sys.stderr, flush=True)
        found[program.name] = time_program(program, device, seconds)
    title = torch.cuda.get_device_name() if device == "cuda" else machine()["cpu"]
    return {"machine": title, "torch": torch.__version__, "device": device, "programs": found}


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each program: microseconds with its pass, and how many times as long without."""
    head = "".join(f" {each['device']}, {way}: µs | gain |" for each in results for way in WAYS)
    lines = [
        *(f"{each['device']}: {each['machine']}, torch {each['torch']}." for each in results),
        "",
        f"| rule | pass |{head}",
        "|---|---|" + "---:|" * (2 * len(WAYS) * len(results)),
    ]
    for program in PROGRAMS:
        cells = [cell for each in results for way in WAYS
                 for cell in _cells(each["programs"].get(program.name, {}).get(way))]  # fmt: skip
        if any(cell != "–" for cell in cells):
            lines.append(f"| {program.name} | {program.pass_name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(timed: Mapping[str, Any] | None) -> tuple[str, str]:
    """Microseconds and gain; no gain where the pass found nothing to do."""
    if timed is None or "failure" in timed:
        return "–", "–"
    taken = timed["us"]["with"]
    shown = f"{taken:.3g}" if taken < 1000 else f"{taken:.0f}"
    return shown, f"{timed['us']['without'] / taken:.2f}" if timed["rewrites"] else "–"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rule_gains", description=__doc__)
    parser.add_argument("programs", nargs="*", help="names; all if none")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each program and way")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--from-json", type=Path, nargs="+", help="show these; run nothing")
    options = parser.parse_args()
    if options.from_json:
        results = [json.loads(path.read_text()) for path in options.from_json]
    else:
        torch.set_num_threads(1)
        results = [measure(options.programs, options.device, options.seconds)]
    if options.json:
        options.json.write_text(json.dumps(results[0], indent=1))
    text = markdown(results)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    for each in results:
        for name, ways in each["programs"].items():
            for way, timed in ways.items():
                if "failure" in timed:
                    print(f"{each['device']}, {name}, {way}: {timed['failure']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
