"""Operators of torch's database on a device, each compiled and judged by eager and float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from operators import judge, samples, trained
from operators.score import Outcome as Way

from gpu.result import Case, Outcome, Result

PART = "operators"
SAMPLES = 2
"""Of an operator in a dtype, as one program."""
_OTHERS = 30
"""Of the dtypes after an operator's first, each so many-th is in the sample."""
_TRAINED = 8
"""Of the operators, each so many-th is in the sample with its gradients."""
_GRADIENTS = " with gradients"
_SECONDS = 120.0


def cases(device: str, *, everything: bool) -> list[Case]:
    """Each operator in float32, or its first dtype; a sample of all others, and of gradients."""
    first, others, gradients = [], [], []
    for op in samples.operators(None):
        found = samples.dtypes(op, torch.device(device).type)
        usual = [dtype for dtype in found if dtype is torch.float32] or found[:1]
        first += [_name(op, dtype) for dtype in usual]
        others += [_name(op, dtype) for dtype in found if dtype not in usual]
        if op.supports_autograd and torch.float32 in usual:
            gradients.append(_name(op, torch.float32) + _GRADIENTS)
    if not everything:
        others, gradients = others[::_OTHERS], gradients[::_TRAINED]
    return [Case(PART, name, device, _SECONDS) for name in (*first, *gradients, *others)]


def _name(op: Any, dtype: torch.dtype) -> str:
    return f"{samples.name_of(op)}[{str(dtype).removeprefix('torch.')}]"


@cache
def _by_name() -> dict[str, Any]:
    samples.prepare()
    return {samples.name_of(op): op for op in samples.operators(None)}


def check(case: Case) -> Result:
    """One operator in one dtype."""
    check_one = trained.check_as_it_is if case.name.endswith(_GRADIENTS) else judge.check
    name, _, kind = case.name.removesuffix(_GRADIENTS).removesuffix("]").rpartition("[")
    torch.manual_seed(0)  # samples are drawn
    found = check_one(_by_name()[name], getattr(torch, kind), SAMPLES, case.device)
    if found.outcome is Way.WRONG:
        return Result(case, Outcome.WRONG, found.detail, found.detail)
    if found.outcome is Way.EAGER_RAISES:
        return Result(case, Outcome.NOT_HERE)
    return Result(case, Outcome.RIGHT, found.outcome.value, found.detail)
