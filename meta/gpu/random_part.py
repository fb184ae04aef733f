"""Random programs of ATen operators on a device, compiled whole and judged by eager and float64."""

from __future__ import annotations

import torch
from randomgraphs.generate import generate
from randomgraphs.judge import MANY_RUNS, difference, expected
from torch.utils._pytree import tree_leaves

import plait
from gpu.models_part import how
from gpu.result import Case, Outcome, Result

PART = "random"
_SAMPLE, _ALL = 100, 2000
"""How many programs are checked."""
_SECONDS = 150.0


def cases(device: str, *, everything: bool) -> list[Case]:
    """Programs by their numbers."""
    numbers = range(_ALL if everything else _SAMPLE)
    return [Case(PART, f"program {number:04}", device, _SECONDS) for number in numbers]


def check(case: Case) -> Result:
    """A program, called twice."""
    program = generate(int(case.name.rpartition(" ")[2]))
    try:
        wanted = expected(program, device=case.device)
    except RuntimeError as error:  # no kernel of eager's there
        return Result(case, Outcome.NOT_HERE, f"eager: {error}"[:200])
    compiled = plait.compile(program.on(case.device).function())
    for _ in range(2):
        with torch.no_grad():
            got = tree_leaves(compiled(*program.tensors(case.device)))
        wrong = difference(got, wanted)
        if wrong is not None:  # some differences have one chance in 64
            wrong = difference(got, expected(program, MANY_RUNS, case.device))
        if wrong is not None:
            return Result(case, Outcome.WRONG, wrong, f"{wrong}\n{program.text}")
    return Result(case, Outcome.RIGHT, how(compiled))
