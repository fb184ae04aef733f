"""Models of `transformers` on a device, compiled whole and judged by eager and float64."""

from __future__ import annotations

import copy
from typing import Any

import torch
from suites.zoo import MODELS, Entry
from torch import Tensor
from torch.utils._pytree import tree_map_only

import plait
from gpu.judge import fault
from gpu.result import Case, Outcome, Result
from gpu.seeds import seed_all

PART = "models"
SIZES = (0, 1, 0)
"""The sizes of the inputs of successive calls."""
_EVERY = 4
_SECONDS = 150.0
_NARROW = " in bfloat16"


def cases(device: str, *, everything: bool) -> list[Case]:
    """Each fourth model of the zoo, or all; every other one of them in bfloat16, too."""
    names = [*MODELS][:: 1 if everything else _EVERY]
    narrow = [f"{name}{_NARROW}" for name in names[:: 1 if everything else 2]]
    return [Case(PART, name, device, _SECONDS) for name in (*names, *narrow)]


def check(case: Case) -> Result:
    """Calls of a model and of its compiled twin, with inputs of two sizes."""
    entry = MODELS[case.name.removesuffix(_NARROW)]
    dtype = torch.bfloat16 if case.name.endswith(_NARROW) else torch.float32
    try:
        model = entry.build().to(case.device, dtype)
        twin, wide = copy.deepcopy(model), copy.deepcopy(model)
        expected = [_called(model, entry, size, case.device, dtype) for size in SIZES]
    except Exception as error:  # a fault of the zoo's, or eager has no kernel there
        return Result(case, Outcome.NOT_HERE, f"eager: {type(error).__name__}: {error}"[:200])
    compiled = plait.compile(twin)

    def exact(size: int) -> Any:
        return _called(wide.double(), entry, size, case.device, torch.float64)

    for number, (size, wanted) in enumerate(zip(SIZES, expected, strict=True)):
        found = _called(compiled, entry, size, case.device, dtype)
        wrong = fault(found, wanted, lambda size=size: exact(size), f"call {number}")
        if wrong is not None:
            return Result(case, Outcome.WRONG, wrong, f"{wrong}\n{plait.report(compiled)}")
    return Result(case, Outcome.RIGHT, how(compiled))


def _called(model: Any, entry: Entry, size: int, device: str, dtype: torch.dtype) -> Any:
    inputs = inputs_of(entry, size, device, dtype)
    seed_all(size)
    with torch.no_grad():
        return model(**inputs)


def inputs_of(
    entry: Entry, size: int, device: str, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """What a model of the zoo is called with, on a device, its floats in a type."""

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    inputs = tree_map_only(Tensor, moved, entry.inputs(size))
    assert isinstance(inputs, dict)
    return inputs


WAYS = (
    "without a break",
    "with kernels launched from Python",
    "with graph breaks",
    "eagerly in part or as a whole",
)
"""How something is run, from the best on."""


def how(compiled: Any) -> str:
    """How it was run, by the compiler's report."""
    report = plait.report(compiled)
    if any(graph.reason is not None for graph in report.graphs):
        return WAYS[3]
    if report.breaks:
        return WAYS[2]
    return WAYS[any(graph.python_reason is not None for graph in report.graphs)]
