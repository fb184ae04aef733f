"""The benchmarks of GPUs, one after the other, and the pages that their tables are on."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.paths import ROOT, caches_in

PART = "benchmarks"


@dataclass(frozen=True, slots=True)
class Table:
    """A page of `benchmarks/results`: what measures it, and with which arguments."""

    page: str
    title: str
    module: str
    arguments: tuple[str, ...] = ()


TABLES = (
    Table(
        "gpu_kernels", "Programs that memory bounds, on a GPU", "gpu_kernels", ("--seconds=0.3",)
    ),
    Table(
        "gpu_scatters", "Scatters, scans and dropout on a GPU", "gpu_scatters", ("--seconds=0.4",)
    ),
    Table("gpu_optimizers", "Steps of optimizers on a GPU", "gpu_optimizers"),
    Table("flex_attention", "Attention with score functions and masks", "flex_attention"),
    Table(
        *("gpu_models", "Small models on a GPU", "gpu_models"),
        ("4×(Linear", "4 layers", "small CNN", "MLP"),
    ),
    Table("gpu_whole_models", "Whole models on a GPU", "gpu_models", ("bfloat16",)),
    Table("gpu_cold", "First calls on a GPU", "gpu_cold"),
)


def measured(only: Sequence[str], results: Path, minutes: float) -> bool:
    """Measure all tables, or those with one of these texts in their names; whether all are whole.

    Args:
        results: the folder that pages are written to.
        minutes: after which a benchmark is ended; the rows that it has are kept.
    """
    good = True
    for table in TABLES:
        if only and not any(text in table.page for text in only):
            continue
        begun = time.monotonic()
        wrong = _measure(table, results, minutes)
        good &= wrong is None
        told = "measured" if wrong is None else f"WRONG: {wrong}"
        print(f"benchmark {table.page}: {told}, {time.monotonic() - begun:.0f} s", flush=True)
    return good


def _measure(table: Table, results: Path, minutes: float) -> str | None:
    """Measure a table in a process of its own; what went wrong, in words."""
    with tempfile.TemporaryDirectory(prefix="plait-gpu-") as folder:
        made = Path(folder) / "table.md"
        command = [sys.executable, "-m", f"benchmarks.{table.module}", "--markdown", str(made)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                [*command, *table.arguments],
                cwd=ROOT,
                env={**os.environ, **caches_in(folder), "PYTHONPATH": path},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            wrong = _ended(process, minutes)
            log.seek(0)
            last = log.read().rstrip().splitlines()[-1:]
        if made.exists():
            results.mkdir(parents=True, exist_ok=True)
            (results / f"{table.page}.md").write_text(page(table, made.read_text()))
        return wrong and "; ".join([wrong, *last])


def _ended(process: subprocess.Popen[bytes], minutes: float) -> str | None:
    try:
        status = process.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # compilers, too
        process.wait()
        return f"ended after {minutes:g} minutes; the rows until then are kept"
    return None if status == 0 else f"exit status {status}"


def page(table: Table, measured: str) -> str:
    """What is measured and how, as the benchmark's own text says, and the table."""
    source = (ROOT / "benchmarks" / f"{table.module}.py").read_text()
    text = ast.get_docstring(ast.parse(source)) or ""
    told = [part for part in text.split("\n\n")[1:] if not part.startswith("    ")]
    words = " ".join([f"python -m benchmarks.{table.module}", *table.arguments])
    return "\n\n".join([f"# {table.title}", f"`{words}`.", *told, measured.strip()]) + "\n"
