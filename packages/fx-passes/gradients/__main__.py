"""`python -m gradients`: gradients of compiled programs against eager; exits 1 if any differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from gradients import generated, operators, second
from gradients.score import Verdict, report
from gradients.ways import WAYS

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def main() -> int:
    chosen = _parser().parse_args()
    operators.prepare()
    compiler = WAYS[chosen.through]
    index, count = (int(each) for each in chosen.part.split("/"))

    def first_order(dtype: torch.dtype) -> Iterator[Verdict]:
        for op in operators.operators(chosen.only, (index, count)):
            for sample in operators.samples(op, dtype, chosen.samples):
                yield operators.check(sample, dtype, compiler, twice=False)

    def second_order() -> Iterator[Verdict]:
        for op in operators.operators(chosen.only, (index, count)):
            if op.name in second.OPERATORS:
                for sample in operators.samples(op, torch.float64, chosen.samples):
                    yield second.check_second(sample, compiler)

    def programs() -> Iterator[Verdict]:
        for number in range(chosen.first + index, chosen.first + chosen.programs, count):
            yield generated.check(number, compiler)

    suites = {
        **{f"operators, {name}": lambda d=d: first_order(d) for name, d in DTYPES.items()},
        "gradgradcheck": second_order,
        "random programs": programs,
    }
    right, kept = True, {}
    for name, suite in suites.items():
        if not any(name.startswith(each) for each in chosen.suites):
            continue
        verdicts = list(suite())
        right &= report(f"{name}, through {chosen.through}", verdicts, reasons=chosen.reasons)
        kept[name] = [(each.case, each.outcome.name, each.detail) for each in verdicts]
    if chosen.json:
        chosen.json.write_text(json.dumps(kept))
    return int(not right)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gradients", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", default=["operators", "gradgradcheck", "random"],
        help="operators, 'operators, float64', gradgradcheck, random",
    )  # fmt: skip
    parser.add_argument("--through", choices=WAYS, default="joint", help="what compiles")
    parser.add_argument("--samples", type=int, default=4, help="of each operator")
    parser.add_argument("--programs", type=int, default=4000, help="how many random programs")
    parser.add_argument("--first", type=int, default=0, help="number of the first random program")
    parser.add_argument("--only", help="one operator")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th, from the I-th")
    parser.add_argument("--reasons", type=int, default=8, help="how many refusals to list")
    parser.add_argument("--json", type=Path, help="write all verdicts to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
