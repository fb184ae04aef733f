"""Runs the measurements in fresh processes and gathers their results."""

from __future__ import annotations

import compileall
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.workloads import Workload

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (1, 8, 32)
_TIMEOUT_SECONDS = 900
_WARM_STARTS = 3
"""Processes whose median is told: a warm start takes no longer than what else a machine does."""


def run_workload(
    workload: Workload, systems: Sequence[str], seconds: float, *, only_steady: bool = False
) -> dict[str, Any]:
    """Cold and warm first calls, steady state, errors and memory of one workload."""
    missing = [name for name in workload.needs if not _installed(name)]
    if missing:
        return {"skipped": f"not installed: {', '.join(missing)}"}
    results: dict[str, Any] = {system: {} for system in systems}
    with fresh_caches() as environment:
        for system in () if only_steady else systems:
            # Eager has no caches: one process tells its memory.
            for kind in ("warm",) if system == "eager" else ("cold", "warm"):
                words = ["first-call", "--workload", workload.name, "--systems", system]
                times = _WARM_STARTS if kind == "warm" and system != "eager" else 1
                runs = [_measure(words, environment) for _ in range(times)]
                results[system][kind] = _median_run(runs)
        words = ["steady", "--workload", workload.name, "--systems", ",".join(systems)]
        together = _measure([*words, "--seconds", str(seconds)], environment)
    for system in systems:
        results[system]["steady"] = together.get(system, together)
    return results


def _median_run(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run whose first call took the median of seconds; a failure, if there is one."""
    failed = [run for run in runs if "compile_s" not in run]
    return failed[0] if failed else sorted(runs, key=lambda run: run["compile_s"])[len(runs) // 2]


def run_overhead(what: str, systems: Sequence[str], seconds: float) -> dict[str, Any]:
    """Microseconds by number of layers and system: of guards and dispatch alone ("overhead"), or
    of a forward and backward, with the autograd wrapper and without it ("wrapper")."""
    with fresh_caches() as environment:
        return {
            str(layers): _measure(
                [
                    *(what, "--layers", str(layers), "--systems", ",".join(systems)),
                    *("--seconds", str(seconds)),
                ],
                environment,
            )
            for layers in LAYERS
        }


@contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """An environment whose compilers find empty caches."""
    _compile_bytecode()
    # As processes of users run: all that is installed has its bytecode beside it.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        yield {
            **inherited,
            "PLAIT_CACHE_DIR": f"{folder}/plait",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }


@functools.lru_cache(maxsize=1)
def _compile_bytecode() -> None:
    """Compile plait's modules, as installing a wheel does, and those of the benchmark."""
    for folder in [*ROOT.glob("packages/*/src"), ROOT / "meta" / "src", ROOT / "benchmarks"]:
        compileall.compile_dir(folder, quiet=2)


def _measure(words: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.measure", *words]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"took longer than {_TIMEOUT_SECONDS} s"}
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()
        return {"failure": last[-1] if last else f"exit status {done.returncode}"}
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "plait": importlib.metadata.version("plait"),
    }


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
