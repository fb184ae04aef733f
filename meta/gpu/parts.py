"""The parts of the suite that check, each a module with `cases` and `check`."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from gpu.paths import find_suites
from gpu.result import CHECKS, Case, Result

find_suites()
# Else convolutions of float32 take 11 bits of their factors, by one algorithm and not by another.
torch.backends.cudnn.allow_tf32 = False
PARTS: dict[str, ModuleType] = {}
MISSING: dict[str, str] = {}
"""Why parts cannot be run here: what they import is not installed."""
for _name in CHECKS:
    try:
        PARTS[_name] = importlib.import_module(f"gpu.{_name}_part")
    except ImportError as _error:
        MISSING[_name] = str(_error)


def check(case: Case) -> Result:
    """Check a case in this process."""
    result: Result = PARTS[case.part].check(case)
    return result


def is_apart(case: Case) -> bool:
    """Whether a case starts a process of its own."""
    return case.part == "tests"
