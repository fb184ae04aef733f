"""Runs CPython's own tests, plain and with their methods compiled: `python -m suites.cpython`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suites.cpython_modules import LANGUAGE, MODULES

ROOT = Path(__file__).parents[1]
LOADING = 120.0
"""Seconds in which a test module is to be imported."""


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one test in one mode."""

    outcome: str
    """"passed", "failures", "errors", "skipped" ..., "died" or "timeout"."""
    text: str = ""
    seen: dict[str, Any] | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Method:
    """A test method, plain and compiled."""

    name: str
    plain: Run
    compiled: Run

    @property
    def same(self) -> bool:
        unknown = self.plain.outcome in ("died", "timeout", "missing")
        return self.plain.outcome == self.compiled.outcome and not unknown

    @property
    def counted(self) -> bool:
        """Whether the method runs at all, and is a function that can be compiled."""
        skipped = self.plain.outcome == "skipped" and self.same
        unknown = self.compiled.outcome not in ("died", "timeout") and not self.compiled.seen
        return not skipped and not unknown

    @property
    def whole(self) -> bool:
        return self.same and bool(self.compiled.seen and self.compiled.seen["whole"])


@dataclass(frozen=True, slots=True)
class Task:
    """A module's tests, or those whose names contain a pattern."""

    module: str
    timeout: float
    """Seconds a test method may take."""
    pattern: str = ""


def run_module(task: Task, mode: str) -> dict[str, Run]:
    """The tests of a module in a process of their own; after a crash the rest in another."""
    found: dict[str, Run] = {}
    first = 0
    while True:
        names, last, cause = _run_from(task, mode, first, found)
        if cause is None:
            return found
        if last is None or last >= len(names):
            found[f"test.test_{task.module}"] = Run("died", f"at load: {cause}")
            return found
        found[names[last]] = Run("timeout" if cause == "timeout" else "died", cause)
        first = last + 1


def _run_from(
    task: Task, mode: str, first: int, found: dict[str, Run]
) -> tuple[list[str], int | None, str | None]:
    """Run the tests from number `first`; the names, the last one begun, and why it ended early."""
    names: list[str] = []
    last, started = None, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        process, reader = _start(task, mode, first, folder, log)
        try:
            for event in _events(reader, task.timeout):
                match event["event"]:
                    case "tests":
                        names = event["names"]
                    case "start":
                        last, started = event["number"], time.perf_counter()
                    case "stop":
                        seconds = round(time.perf_counter() - started, 3)
                        run = Run(event["outcome"], event["text"], event["seen"], seconds)
                        found[names[event["number"]]] = run
                    case "end":
                        return names, last, None
                    case "timeout":
                        return names, last, "timeout"
        finally:
            process.kill()
            process.wait()
            os.close(reader)
        log.seek(0)
        text = log.read().decode(errors="replace")
        text = text[max(text.rfind("Fatal Python error"), len(text) - 3000) :][:1500]
        return names, last, f"exit status {process.returncode}\n{text}"


def _start(
    task: Task, mode: str, first: int, folder: str, log: Any
) -> tuple[subprocess.Popen[bytes], int]:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    path = os.pathsep.join(p for p in (os.environ.get("PYTHONPATH"), str(ROOT)) if p)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    arguments = [task.module, mode, str(writer), str(first), task.pattern]
    command = [sys.executable, "-m", "suites.cpython_worker", *arguments]
    process = subprocess.Popen(
        command,
        pass_fds=(writer,),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    os.close(writer)
    return process, reader


def _events(reader: int, timeout: float) -> Iterator[dict[str, Any]]:
    """The worker's events; one called "timeout" if none comes for that long.

    Until the tests are loaded it may take longer.
    """
    waiting = b""
    patience = max(timeout, LOADING)
    while True:
        if not select.select([reader], [], [], patience)[0]:
            yield {"event": "timeout"}
            return
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return
        *lines, waiting = (waiting + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines)
        patience = timeout if lines else patience


def both(task: Task) -> list[Method]:
    """The tests of a module, plain and compiled."""
    plain = run_module(task, "eager")
    compiled = run_module(task, "compiled")
    missing = Run("missing")
    names = list(dict.fromkeys([*plain, *compiled]))
    return [Method(n, plain.get(n, missing), compiled.get(n, missing)) for n in names]


def score(methods: list[Method]) -> str:
    counted = [m for m in methods if m.counted]
    whole, same = sum(m.whole for m in counted), sum(m.same for m in methods)
    share = f"{100 * whole / len(counted):.1f} %" if counted else "-"
    return f"same outcome {same}/{len(methods)}, without a break {whole}/{len(counted)} ({share})"


def _general(reason: str) -> str:
    """A reason without what is particular to one test."""
    shorter = re.sub(r" \([^()]*\)$", "", reason)  # why no continuation could follow
    return re.sub(r"0x[0-9a-f]+|\b\d+\b", "#", shorter)[:150]


def report(methods: list[Method]) -> str:
    """The methods that differ, faults, and the causes of breaks by how many methods have them."""
    lines = []
    differing = [m for m in methods if not m.same]
    if differing:
        lines += ["", "Outcomes that differ"]
    for method in differing:
        lines.append(f"  {method.name}: {method.plain.outcome} -> {method.compiled.outcome}")
        text = method.compiled.text.strip().splitlines()
        shown = text[:9] if method.compiled.outcome == "died" else text[-1:]
        lines += [f"      {line[:200]}" for line in shown]
    faults = Counter(f for m in methods if m.compiled.seen for f in set(m.compiled.seen["faults"]))
    lines += _ranked("Faults of the tracer (methods)", faults, {})
    causes: Counter[str] = Counter()
    firsts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for method in methods:
        listed = method.compiled.seen["causes"] if method.compiled.seen else []
        keys = [f"{code} {_general(reason)}" for code, reason, _ in listed]
        for key, cause in zip(keys, listed, strict=True):
            examples.setdefault(key, f"{method.name}: {cause[2]}")
        causes.update(set(keys))
        if len(set(keys)) == 1:
            firsts[keys[0]] += 1
    lines += _ranked("Why methods break (methods)", causes, examples)
    lines += _ranked("The only cause in a method (methods that it would free)", firsts, {})
    return "\n".join(lines)


def _ranked(title: str, counts: Counter[str], examples: dict[str, str]) -> list[str]:
    lines = ["", title] if counts else []
    for key, count in counts.most_common(40):
        lines.append(f"{count:5}  {key}")
        if key in examples:
            lines.append(f"         e.g. {examples[key][:200]}")
    return lines


def _details(method: Method) -> str:
    """All that is known of one method."""
    compiled = method.compiled
    lines = [f"  {method.name}: {method.plain.outcome} -> {compiled.outcome}"]
    lines += [f"    {line}" for line in compiled.text.strip().splitlines()]
    for code, reason, line in compiled.seen["causes"] if compiled.seen else []:
        lines += [f"    {code} {reason}", f"      at {line}"]
    return "\n".join(lines)


def _write(path: str, methods: list[Method]) -> None:
    Path(path).write_text(json.dumps([dataclasses.asdict(m) for m in methods], indent=1))


def _read(path: str) -> list[Method]:
    rows = json.loads(Path(path).read_text())
    return [Method(r["name"], Run(**r["plain"]), Run(**r["compiled"])) for r in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suites.cpython", description=__doc__)
    parser.add_argument("--module", action="append", default=[], help="dict, generators ...")
    parser.add_argument("--language", action="store_true", help="only those of the language itself")
    parser.add_argument("--method", metavar="PART", help="only those with it in their names")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds a test method")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write all outcomes there")
    parser.add_argument("--report", metavar="FILE", help="only print what such a file holds")
    options = parser.parse_args()
    if options.report:
        methods = _read(options.report)
        print(f"{report(methods)}\n\n{score(methods)}")
        return 0
    modules = options.module or (LANGUAGE if options.language else MODULES)
    everything: list[Method] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = [Task(module, options.timeout, options.method or "") for module in modules]
        for module, methods in zip(modules, pool.map(both, tasks), strict=True):
            everything += methods
            seconds = sum(m.compiled.seconds for m in methods)
            print(f"{module:22} {score(methods)}  {seconds:.0f} s", flush=True)
            if options.method:
                print("\n".join(_details(method) for method in methods))
            if options.json:
                _write(options.json, everything)
    print(report(everything))
    print(f"\n{len(modules)} modules: {score(everything)}")
    return 0 if all(m.same for m in everything) else 1


if __name__ == "__main__":
    sys.exit(main())
