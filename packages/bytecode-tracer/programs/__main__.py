"""`python -m programs`: random programs against eager; exits 1 if any behaves otherwise.

The first wrong program is made as small as it can be, and printed.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from conformance import report
from conformance.execute import Verdict
from hypothesis import HealthCheck, Phase, given, seed, settings

from programs.calls import Choice, calls
from programs.run import run_program
from programs.writer import programs

Body = Callable[[str, list[Choice]], None]


def main() -> int:
    chosen = _parser().parse_args()
    faulthandler.enable()
    dynamic = None if chosen.dynamic is None else chosen.dynamic == "yes"
    verdicts: list[Verdict] = []
    wrong: list[tuple[str, list[Choice]]] = []

    def look(text: str, choices: list[Choice]) -> None:
        verdict = run_program(text, choices, limit=chosen.limit, dynamic=dynamic)
        verdicts.append(verdict)
        if not verdict.right:
            wrong.append((text, choices))
            print(f"wrong, number {len(verdicts)}: {verdict.difference}", flush=True)
        if len(verdicts) % 100 == 0:
            print(f"{len(verdicts)}: {len(wrong)} wrong", file=sys.stderr, flush=True)

    _run(look, chosen.count, chosen.seed, [Phase.generate])
    if wrong and not chosen.keep:
        print(_smallest(chosen, dynamic))
    causes = Counter(cause for v in verdicts for cause in _causes(v))
    for cause, number in causes.most_common(chosen.causes):
        print(f"{number:5} {cause}")
    print(report.score(verdicts))
    return int(bool(wrong))


def _causes(verdict: Verdict) -> set[str]:
    """Why a program was not captured whole."""
    tracing = verdict.tracing
    found = [*tracing.breaks, *([tracing.eager] if tracing.eager else [])]
    return {f"{each.code} {each.reason}" for each in found}


def _smallest(chosen: argparse.Namespace, dynamic: bool | None) -> str:
    """The smallest wrong program that the same search comes to."""
    smallest = ""

    def refuse(text: str, choices: list[Choice]) -> None:
        nonlocal smallest
        verdict = run_program(text, choices, limit=chosen.limit, dynamic=dynamic)
        if not verdict.right:
            function = text[text.index("def program") :]
            smallest = f"{function}\ncalls: {choices}\n{verdict.difference}"
            raise AssertionError

    try:
        _run(refuse, chosen.count, chosen.seed, [Phase.generate, Phase.shrink])
    except AssertionError:
        return smallest
    return "the wrong program did not come again"


def _run(body: Body, count: int, number: int, phases: list[Phase]) -> None:
    checks = list(HealthCheck)
    wanted = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=checks,
        print_blob=False,
        report_multiple_bugs=False,
    )
    test: Any = wanted(seed(number)(given(programs(), calls())(body)))
    test()


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m programs", description=__doc__)
    made.add_argument("--count", type=int, default=2000, help="programs to run")
    made.add_argument("--seed", type=int, default=0, help="other programs for other seeds")
    made.add_argument("--limit", type=float, default=20.0, help="seconds for a program")
    made.add_argument("--keep", action="store_true", help="do not make a wrong program smaller")
    made.add_argument("--causes", type=int, default=20, help="how many causes of breaks to print")
    made.add_argument("--dynamic", choices=("yes", "no"), help="the compiled function's option")
    return made


sys.exit(main())
