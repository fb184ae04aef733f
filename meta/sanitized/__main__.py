"""Suites of other packages under the sanitizers, with a printed score: `python -m sanitized`.

Further arguments go to the one suite that is chosen, such as
`--only operators --dtype float32 --part 0/4` or `--only "random graphs" --start 500`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from plait_utils import usable_processors
from sanitized.running import ROOT, libraries, run

LOWERING = ROOT / "packages" / "ir-lowering"
CPP = ROOT / "packages" / "cpp-codegen"
TRACER = ROOT / "packages" / "bytecode-tracer"
PROCESSORS = str(usable_processors())

SUITES = {
    "operators": (["-m", "operators", "--samples", "3"], LOWERING),
    "random graphs": (["-m", "randomgraphs", "--backends", "cpp"], LOWERING),
    "kernels and host programs": (["-m", "pytest", "-q", "-n", PROCESSORS, "tests"], CPP),
    "external calls": (["tests/cpp_op_db.py", "1", "2"], CPP),
    "guards": (["-m", "pytest", "-q", "-k", "guards", "tests"], TRACER),
}
MORE = {"guards": {"PYTHONMALLOC": "malloc"}}
"""Of the environment: what guards look at are Python's objects, each of which is then watched."""


def main(given: list[str]) -> int:
    """Run the suites; returns how many failed or had findings."""
    parser = argparse.ArgumentParser(prog="python -m sanitized", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SUITES, default=[*SUITES], metavar="SUITE")
    chosen, more = parser.parse_known_args(given)
    if more and len(chosen.only) > 1:
        parser.error(f"{' '.join(more)}: for which suite? choose one with --only")
    if not libraries():
        print("g++ has no sanitizers here: nothing is known")
        return 1
    suites = {name: SUITES[name] for name in chosen.only}
    wrong = 0
    for name, (command, where) in suites.items():
        folder = Path(tempfile.mkdtemp(prefix="sanitized-"))
        status, found = run(folder, [*command, *more], where, MORE.get(name))
        wrong += bool(status or found)
        print(f"{name}: exit status {status}, {len(found)} findings", *found[:20], sep="\n    ")
        shutil.rmtree(folder) if not found else print(f"    in {folder}")
    print(f"{len(suites) - wrong} of {len(suites)} suites are right, without findings")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
