"""`python -m conformance`: run the cases and print the score; exits 1 if any is wrong."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
from collections.abc import Iterator

from conformance import report
from conformance.declare import Case
from conformance.discover import cases_of, missing_requirement, topics
from conformance.execute import Order, Verdict, run_case


def chosen(arguments: argparse.Namespace) -> Iterator[Case]:
    """The cases that the options name; says which topics cannot run here."""
    for topic in arguments.topic or topics():
        missing = missing_requirement(topic)
        if missing:
            print(f"{topic}: left out, {missing} is not installed", file=sys.stderr)
            continue
        for case in cases_of(topic):
            if not arguments.case or any(part in case.id for part in arguments.case):
                yield case


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    made.add_argument("--topic", action="append", help="a file of cases; may be repeated")
    made.add_argument("--case", action="append", help="part of topic/name; may be repeated")
    made.add_argument("--json", action="store_true", help="print all verdicts as JSON")
    made.add_argument("--limit", type=float, default=20.0, help="seconds for a case")
    made.add_argument("-v", "--verbose", action="store_true", help="each case with its breaks")
    made.add_argument(
        "--dynamic", choices=("yes", "no"), help="the option of the compiled function"
    )
    made.add_argument("--backwards", action="store_true", help="the argument sets in reverse")
    made.add_argument("--mutants", type=int, default=0, help="further sets made from each set")
    made.add_argument(
        "--surroundings", type=int, default=0, help="further calls after other changes"
    )
    made.add_argument("--seed", type=int, default=0, help="of the random changes")
    made.add_argument("--itself", action="store_true", help="eager against eager: test the suite")
    return made


def main() -> int:
    arguments = parser().parse_args()
    faulthandler.enable()
    compile_with = (lambda program, options: program) if arguments.itself else None
    options: dict[str, int] = {"dynamic": arguments.dynamic == "yes"} if arguments.dynamic else {}
    if arguments.mutants or arguments.surroundings:
        options["recompile_limit"] = 100  # all sets are to be compiled
    order = Order(arguments.backwards, arguments.mutants, arguments.surroundings, arguments.seed)
    verdicts: list[Verdict] = []
    for case in chosen(arguments):
        verdicts.append(
            run_case(
                case,
                limit=arguments.limit,
                compile_with=compile_with,
                options=options,
                order=order,
            )
        )
        if arguments.verbose and not arguments.json:
            print("\n".join(report.details(verdicts[-1])), flush=True)
    if arguments.json:
        print(json.dumps(report.as_json(verdicts), indent=1))
    else:
        for part in (report.table(verdicts), report.causes(verdicts), report.wrong(verdicts)):
            print("\n".join(part), end="\n\n")
        print(report.score(verdicts))
    return 0 if verdicts and all(v.right for v in verdicts) else 1


sys.exit(main())
