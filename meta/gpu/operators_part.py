"""Operators of torch's database on a device, each compiled and judged by eager and float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from operators import judge, samples
from operators.score import Outcome as Way

from gpu.result import Case, Outcome, Result

PART = "operators"
SAMPLES = 3
"""Of an operator in a dtype, as one program."""
_EVERY = 10
"""Of the dtypes after an operator's first, each so many-th is in the sample."""
_SECONDS = 120.0


def cases(device: str, *, everything: bool) -> list[Case]:
    """Each operator in float32, or its first dtype, and a sample of all others."""
    first, others = [], []
    for op in samples.operators(None):
        found = samples.dtypes(op, torch.device(device).type)
        usual = [dtype for dtype in found if dtype is torch.float32] or found[:1]
        first += [_case(op, dtype, device) for dtype in usual]
        others += [_case(op, dtype, device) for dtype in found if dtype not in usual]
    return first + others[:: 1 if everything else _EVERY]


def _case(op: Any, dtype: torch.dtype, device: str) -> Case:
    kind = str(dtype).removeprefix("torch.")
    return Case(PART, f"{samples.name_of(op)}[{kind}]", device, _SECONDS)


@cache
def _by_name() -> dict[str, Any]:
    samples.prepare()
    return {samples.name_of(op): op for op in samples.operators(None)}


def check(case: Case) -> Result:
    """One operator in one dtype."""
    name, _, kind = case.name.removesuffix("]").rpartition("[")
    torch.manual_seed(0)  # samples are drawn
    found = judge.check(_by_name()[name], getattr(torch, kind), SAMPLES, case.device)
    if found.outcome is Way.WRONG:
        return Result(case, Outcome.WRONG, found.detail, found.detail)
    if found.outcome is Way.EAGER_RAISES:
        return Result(case, Outcome.NOT_HERE)
    return Result(case, Outcome.RIGHT, found.outcome.value, found.detail)
