"""Traces small models of several libraries, against eager: `python -m suites.models`."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from plait_bytecode_tracer import compile_module
from suites.compare import difference
from suites.isolate import IsolatedError, each_isolated
from suites.observe import Break, Observation, Observer
from suites.parts import Part, parts_of
from suites.zoo import MODELS, Entry

SIZES = (0, 0, 1, 0)
"""The sizes of the inputs of successive calls: the same twice, another, the first again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one model fared."""

    name: str
    family: str
    wrong: str | None
    """Where the result differs from eager, or why there is none."""
    seen: Observation | None
    """What the first call captured; None if there was no first call."""
    inexact: str | None = None
    """Where the result differs in any bit."""
    parts: tuple[Part, ...] = ()
    broken: str | None = None
    """Why the model does not run in eager, a fault of the suite."""

    @property
    def right(self) -> bool:
        return self.wrong is None and self.broken is None

    @property
    def whole(self) -> bool:
        return self.right and self.seen is not None and self.seen.whole

    def line(self) -> str:
        """One line for people."""
        if self.broken is not None:
            return f"{self.name:24} does not run in eager: {self.broken}"
        verdict = "right" if self.right else "WRONG"
        if self.seen is None:
            return f"{self.name:24} {verdict}  {self.wrong}"
        seen = self.seen
        counts = f"graphs {seen.graphs:2} breaks {len(seen.breaks):2} eager {len(seen.eager):2}"
        text = f"{self.name:24} {verdict}  {counts} {seen.nodes:5} nodes {seen.seconds:6.2f} s"
        if not self.right:
            text += f"  {self.wrong}"
        first = (*seen.eager, *seen.breaks)[:1]
        return "  ".join([text, *(str(b) for b in first)])


def run(entry: Entry, with_parts: bool) -> Outcome:
    """Call a model four times, eager and compiled: each size of input twice."""
    torch.set_num_threads(1)
    made = partial(Outcome, entry.name, entry.family)
    try:
        model = entry.build()
        twin = copy.deepcopy(model)
        expected = [_call(model, entry, size) for size in SIZES]
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return made(None, None, broken=text)
    observer = Observer()
    seen, wrong, inexact = None, None, None
    try:
        compiled = compile_module(twin, observer.compile)
        for number, size in enumerate(SIZES):
            actual = _call(compiled, entry, size)
            seen = seen or observer.observe()
            place = f"call {number}"
            wrong = wrong or difference(actual, expected[number], place)
            inexact = inexact or difference(actual, expected[number], place, exact=True)
    except Exception as error:
        wrong = f"raises {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        seen = seen or observer.observe()
    observer.close()
    parts = parts_of(entry) if with_parts else ()
    return made(wrong, seen, inexact, parts)


def _call(model: torch.nn.Module, entry: Entry, size: int) -> Any:
    torch.manual_seed(size)
    with torch.no_grad():
        return model(**entry.inputs(size))


def report(outcomes: list[Outcome]) -> str:
    """The score, then the causes of breaks by how many models they touch."""
    judged = [o for o in outcomes if o.broken is None]
    right, whole = sum(o.right for o in judged), sum(o.whole for o in judged)
    exact = sum(o.right and o.inexact is None for o in judged)
    lines = [
        f"right {right}/{len(judged)} ({exact} in every bit), without a break {whole}/{len(judged)}"
    ]
    if len(judged) != len(outcomes):
        lines.append(f"not run, since eager fails: {len(outcomes) - len(judged)}")
    wrong = [(o.name, o.name, o.wrong) for o in judged if o.wrong is not None]
    wrong += [(o.name, p.name, p.wrong) for o in judged for p in o.parts if p.wrong is not None]
    if wrong:
        lines += ["", "Wrong"]
        lines += [f"      {model} {module}: {text}" for model, module, text in wrong]
    faults = Counter(f for o in judged if o.seen is not None for f in set(o.seen.faults))
    if faults:
        lines += ["", "Faults of the tracer (models)"]
        lines += [f"{count:4}  {fault}" for fault, count in faults.most_common()]
    for title, causes in (
        ("Why calls run eagerly or break (models)", _causes(judged)),
        ("Why modules inside break when compiled alone (models)", _part_causes(judged)),
    ):
        if causes:
            lines += ["", title]
        for cause, names in causes:
            lines.append(f"{len(names):4}  {cause.code} {cause.reason}")
            lines.append(f"        e.g. {cause.line}")
            lines.append(f"        {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}")
    return "\n".join(lines)


def _causes(outcomes: Iterable[Outcome]) -> list[tuple[Break, list[str]]]:
    found = [(o.name, b) for o in outcomes if o.seen for b in (*o.seen.eager, *o.seen.breaks)]
    return _grouped(found)


def _part_causes(outcomes: Iterable[Outcome]) -> list[tuple[Break, list[str]]]:
    return _grouped([(o.name, b) for o in outcomes for part in o.parts for b in part.causes])


def _general(reason: str) -> str:
    """A reason without the architecture's name: LlamaConfig and BertConfig are *Config."""
    return re.sub(r"\b[A-Z]\w*?((?!Error)[A-Z][a-z]+)\b", r"*\1", reason)


def _grouped(found: list[tuple[str, Break]]) -> list[tuple[Break, list[str]]]:
    names: dict[tuple[str, str], list[str]] = {}
    example: dict[tuple[str, str], Break] = {}
    for name, cause in found:
        key = (cause.code, _general(cause.reason))
        example.setdefault(key, cause)
        listed = names.setdefault(key, [])
        if name not in listed:
            listed.append(name)
    counts = Counter({key: len(listed) for key, listed in names.items()})
    return [(example[key], names[key]) for key, _ in counts.most_common()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suites.models", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--family", help="text, moe, vision, audio, timm, torchvision ...")
    parser.add_argument("--parts", action="store_true", help="also compile modules inside alone")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a model")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write all outcomes there")
    options = parser.parse_args()
    entries = [MODELS[name] for name in options.only] or list(MODELS.values())
    entries = [e for e in entries if options.family in (None, e.family)]
    import transformers  # once here, so that the forked processes need not

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # untyped there
    gc.freeze()  # the forked processes share what is loaded instead of copying it
    outcomes = []
    task = partial(run, with_parts=options.parts)
    for entry, result in each_isolated(task, entries, options.timeout, options.jobs):
        if isinstance(result, IsolatedError):
            result = Outcome(entry.name, entry.family, str(result), None)
        outcomes.append(result)
        print(result.line(), flush=True)
    print(f"\n{report(outcomes)}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([dataclasses.asdict(o) for o in outcomes], file, indent=1)
    return 0 if all(o.right for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
