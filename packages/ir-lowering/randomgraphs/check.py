"""One random program: made, compiled, compared, and where it is wrong made small."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from plait_ir_lowering import LoweringError
from randomgraphs.generate import generate
from randomgraphs.judge import MANY_RUNS, difference, expected, vacuous
from randomgraphs.program import Program
from randomgraphs.script import script
from randomgraphs.shrink import shrink
from randomgraphs.stages import Made, runner, stages

BACKENDS = ("aten", "interpreter", "python", "cpp")
"""What may run a program, in the order in which it is compiled."""
DIFFERENCE = "difference"


class Outcome(Enum):
    """How a case ended."""

    EQUAL = "equal"
    REFUSED = "refused by lowering"
    WRONG = "wrong"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Verdict:
    """One program."""

    number: int
    outcome: Outcome
    detail: str = ""
    script: str = ""
    steps: int = 0
    loose: tuple[int, int] = (0, 0)
    """How many elements of results say little, and how many there are."""
    calls: dict[str, int] = field(default_factory=dict)


def check(number: int, backends: Sequence[str], seconds: float) -> Verdict:
    """The program of that number; `seconds` for making it small."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    program = generate(number)
    wrong = _wrong(program, backends)
    if wrong is None:
        made, wanted = stages(program), expected(program)
        count = len(program.steps)
        calls = dict.fromkeys(made.calls, 1)
        return Verdict(number, Outcome.EQUAL, "", "", count, vacuous(wanted), calls)
    stage, kind, detail = wrong
    if kind == LoweringError.__name__:
        return Verdict(number, Outcome.REFUSED, detail)
    # What is wrong in an early stage is shown by it alone, without a C++ compiler.
    by = (stage,) if stage in BACKENDS else ()

    def fails(smaller: Program) -> bool:
        found = _wrong(smaller, by)
        return found is not None and found[:2] == (stage, kind)

    small = shrink(program, fails, seconds) if seconds else program
    last = _wrong(small, by) or wrong
    told = f"[{stage}] {last[2]}"
    return Verdict(number, Outcome.WRONG, told, script(small, f"Program {number}: {told}"))


def _wrong(program: Program, backends: Sequence[str]) -> tuple[str, str, str] | None:
    """The stage that is wrong first, the kind of error, and what it says; None if all is right."""
    wanted = expected(program)
    try:
        made = stages(program)
    except Exception as error:  # whatever comes here is the compiler's fault, and the score's
        return "stages", type(error).__name__, f"{type(error).__name__}: {error}"
    for backend in backends:
        found = _wrong_by(made, backend, wanted)
        if found is not None and found[0] == DIFFERENCE:
            wanted = expected(program, runs=MANY_RUNS)  # some differences have one chance in 64
            found = _wrong_by(made, backend, wanted)
        if found is not None:
            return backend, *found
    return None


def _wrong_by(made: Made, backend: str, wanted: list[Any]) -> tuple[str, str] | None:
    try:
        got = runner(made, backend)()
    except Exception as error:  # as above
        return type(error).__name__, f"{type(error).__name__}: {error}"
    found = difference(got, wanted)
    return None if found is None else (DIFFERENCE, found)
