"""One random program: made, compiled, compared, and where it is wrong made small."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch

from plait_ir_lowering import LoweringError
from randomgraphs.generate import generate
from randomgraphs.judge import MANY_RUNS, Expected, difference, expected, vacuous
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
    wanted = expected(program)
    made = _made(program)
    wrong = _wrong(made, wanted, backends)
    if wrong is None:
        assert isinstance(made, Made)
        count = len(program.steps)
        calls = dict.fromkeys(made.calls, 1)
        return Verdict(number, Outcome.EQUAL, "", "", count, vacuous(wanted), calls)
    stage, kind, detail = wrong
    if kind == LoweringError.__name__:
        return Verdict(number, Outcome.REFUSED, detail)
    # What is wrong in an early stage is shown by it alone, without a C++ compiler.
    by = (stage,) if stage in BACKENDS else ()

    def fails(smaller: Program) -> bool:
        found = _wrong(_made(smaller), expected(smaller), by)
        return found is not None and found[:2] == (stage, kind)

    small = shrink(program, fails, seconds) if seconds else program
    last = _wrong(_made(small), expected(small), by) or wrong
    told = f"[{stage}] {last[2]}"
    return Verdict(number, Outcome.WRONG, told, script(small, f"Program {number}: {told}"))


def _made(program: Program) -> Made | Exception:
    """What the stages make of a program, or what one of them raises."""
    try:
        return stages(program)
    except Exception as error:  # whatever comes here is the compiler's fault, and the score's
        return error


def _wrong(
    made: Made | Exception, wanted: Sequence[Expected], backends: Sequence[str]
) -> tuple[str, str, str] | None:
    """The stage that is wrong first, the kind of error, and what it says; None if all is right."""
    if isinstance(made, Exception):
        kind = type(made).__name__
        return "stages", kind, f"{kind}: {made}"
    for backend in backends:
        found = _wrong_by(made, backend, wanted)
        if found is not None and found[0] == DIFFERENCE:
            # Some differences have one chance in 64.
            found = _wrong_by(made, backend, expected(made.program, runs=MANY_RUNS))
        if found is not None:
            return backend, *found
    return None


def _wrong_by(made: Made, backend: str, wanted: Sequence[Expected]) -> tuple[str, str] | None:
    try:
        got = runner(made, backend)()
    except Exception as error:  # as above
        return type(error).__name__, f"{type(error).__name__}: {error}"
    found = difference(got, wanted)
    return None if found is None else (DIFFERENCE, found)
