"""The repository's own tests that need a GPU, or use one where it is there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from gpu.paths import ROOT
from gpu.result import Case, Outcome, Result

PART = "tests"
_PLACES = "packages/*/tests/test_*.py", "meta/tests/test_*.py"
_NAMES_A_GPU = re.compile(r"\bcuda\b|mock_gpu")
_ALL_OF = ROOT / "packages" / "triton-codegen"
"""The package whose tests run kernels on a GPU, where the interpreter does elsewhere."""
_SUITE = str(ROOT / "meta")
"""Where `gpu.shares` is found."""
_PYTHONPATH = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
_SECONDS = 420.0
_NO_TESTS = 5
"""pytest's exit status where it finds none, as a module that is skipped has."""
_LONGEST = {
    "test_triton_compile": 8,
    "test_triton_compile_operations": 6,
    "test_triton_compile_targets": 4,
    "test_plait_distributed": 6,
    "test_triton_sorts": 3,
    **dict.fromkeys(("test_plait_two_gpus", "test_triton_workers"), 1),
    **dict.fromkeys(("test_plait_gpu_warm_start", "test_triton_products"), 1),
    "test_triton_product_forms": 1,
}
"""Files that take longest, and begin first: in how many shares they run side by side."""
_COUNTED = re.compile(r"(\d+) (passed|failed|error|skipped)")
_FAILED = re.compile(r"^(?:FAILED|ERROR) \S*?([\w.]+(?:::\S+)?)(?: - (.*))?$", re.MULTILINE)


def cases(device: str, *, everything: bool) -> list[Case]:
    """Each file of tests that speaks of a GPU, or each share of it, the longest first; all of them
    always."""
    if not device.startswith("cuda"):
        return []
    found = sorted(path for place in _PLACES for path in ROOT.glob(place))
    wanted = [path for path in found if path.is_relative_to(_ALL_OF) or _speaks_of_one(path)]
    ordered = sorted(wanted, key=lambda path: path.stem not in _LONGEST)
    return [Case(PART, name, device, _SECONDS) for path in ordered for name in _shares(path)]


def _shares(path: Path) -> list[str]:
    """The names of a file's cases."""
    name, count = str(path.relative_to(ROOT)), _LONGEST.get(path.stem, 1)
    return [f"{name} {number}/{count}" for number in range(1, count + 1)] if count > 1 else [name]


def _speaks_of_one(path: Path) -> bool:
    return _NAMES_A_GPU.search(path.read_text()) is not None


def check(case: Case) -> Result:
    """Run a file of tests, or a share of it, in a process of its own; each test counts."""
    path, _, share = case.name.partition(" ")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    if share:
        command += ["-p", "gpu.shares", "--share", share]
    process = subprocess.Popen(
        [*command, path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([_SUITE, *_PYTHONPATH])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=case.limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # compilers, too
        text, _ = process.communicate()
        return Result(case, Outcome.WRONG, f"stuck: no end after {case.limit:.0f} s", text[-6000:])
    return read(case, process.returncode, text)


def read(case: Case, status: int, text: str) -> Result:
    """What pytest's output says of a file."""
    summary = text.rstrip().rpartition("\n")[2]
    counts = {kind: int(number) for number, kind in _COUNTED.findall(summary)}
    if status == 0:
        return Result(case, Outcome.RIGHT, count=counts.get("passed", 0))
    if status == _NO_TESTS:
        return Result(case, Outcome.NOT_HERE, summary)
    told = [f"{name}: {why}".rstrip(": ") for name, why in _FAILED.findall(text)]
    wrong = max(counts.get("failed", 0) + counts.get("error", 0), 1)
    listed = "; ".join(told)[:400] or f"exit status {status}: {summary}"
    return Result(case, Outcome.WRONG, listed, text[-20000:], count=wrong)
