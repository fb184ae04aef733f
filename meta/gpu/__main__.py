"""`python -m gpu`, in `meta`: the conformance sample on a GPU, its tests and the benchmarks.

Prints each failure with its reason and a score for each part; exits 1 where anything is wrong or
was not reached, and 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from gpu import tables
from gpu.paths import ROOT, caches_in, find_suites
from gpu.result import CHECKS, Outcome, is_good, score, write_json

SETTINGS = {
    "PLAIT_TRITON_WORKERS": "0",
    "PLAIT_NATIVE_GUARDS": "0",
    "PLAIT_CXX_OPTIMIZATION": "-O0",
    "OMP_NUM_THREADS": "1",
}
"""Of the processes that check: as many as there are processors compile side by side already."""


def main(given: list[str]) -> int:
    chosen = _parser().parse_args(given)
    if torch.device(chosen.device).type == "cuda" and not torch.cuda.is_available():
        print(f"there is no device {chosen.device} here: nothing is known")
        return 2
    find_suites()
    from benchmarks.gpu_facts import facts

    print(facts(chosen.device), flush=True)
    parts = chosen.parts or [*CHECKS, tables.PART]
    wanted = [part for part in CHECKS if part in parts]
    good = _checked(chosen, wanted) if wanted else True
    if tables.PART in parts:
        good &= tables.measured(chosen.only, chosen.results, chosen.minutes_each)
    return int(not good)


def _checked(chosen: argparse.Namespace, wanted: list[str]) -> bool:
    """Whether all cases of some parts are right."""
    from gpu.parts import MISSING, PARTS, is_apart
    from gpu.pool import Place, judged

    begun = time.monotonic()
    missing = [part for part in wanted if part in MISSING]
    for part in missing:
        print(f"{part}: cannot be run: {MISSING[part]}")
    wanted = [part for part in wanted if part in PARTS]
    cases = [
        case
        for part in wanted
        for case in PARTS[part].cases(chosen.device, everything=chosen.all or bool(chosen.only))
        if not chosen.only or any(text in case.name for text in chosen.only)
    ]
    results = []
    with tempfile.TemporaryDirectory(prefix="plait-gpu-") as folder:
        place = Place("gpu.parts", is_apart, {**SETTINGS, **caches_in(folder)})
        for each in judged(cases, place, chosen.jobs, begun + 60 * chosen.minutes):
            results.append(each)
            if each.outcome is Outcome.WRONG or (each.outcome is Outcome.NOT_HERE and each.detail):
                print(each.line(), flush=True)
    if chosen.json:
        write_json(results, chosen.json)
    for part in wanted:
        print(score(part, results))
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    return is_good(results) and not missing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    parts = [*CHECKS, tables.PART]
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        choices=[[], *parts],
        help=f"of {', '.join(parts)}; all if none",
    )
    parser.add_argument("--device", default="cuda", help="cpu, to check the suite itself")
    parser.add_argument("--only", nargs="+", default=[], help="parts of the names of cases")
    parser.add_argument("--all", action="store_true", help="everything, not a sample")
    parser.add_argument("--jobs", type=int, default=_jobs(), help="processes that check")
    parser.add_argument(
        "--minutes",
        type=float,
        default=6,
        help="after which no case begins; what runs has one more",
    )
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "benchmarks" / "results",
        help="the folder that tables are written to",
    )
    parser.add_argument(
        "--minutes-each", type=float, default=9, help="after which a benchmark is ended"
    )
    return parser


def _jobs() -> int:
    """One processor is left to what the processes start."""
    return max(len(os.sched_getaffinity(0)) - 1, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
