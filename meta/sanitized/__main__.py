"""Suites of other packages under the sanitizers, with a printed score: `python -m sanitized`.

Further arguments go to the suite of operators, such as `--dtype float32 --part 0/4`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from sanitized.running import ROOT, libraries, run

LOWERING = ROOT / "packages" / "ir-lowering"
CPP = ROOT / "packages" / "cpp-codegen"


def main(chosen: list[str]) -> int:
    """Run the suites; returns how many failed or had findings."""
    if not libraries():
        print("g++ has no sanitizers here: nothing is known")
        return 1
    operators = ["-m", "operators", "--samples", "3", *chosen]
    suites = {
        "operators": (operators, LOWERING),
        "random graphs": (["-m", "randomgraphs"], LOWERING),
        "kernels and host programs": (["-m", "pytest", "-q", "tests"], CPP),
        "external calls": (["tests/cpp_op_db.py", "1", "2"], CPP),
    }
    wrong = 0
    for name, (command, where) in suites.items():
        folder = Path(tempfile.mkdtemp(prefix="sanitized-"))
        status, found = run(folder, command, where)
        wrong += bool(status or found)
        print(f"{name}: exit status {status}, {len(found)} findings", *found[:20], sep="\n    ")
        shutil.rmtree(folder) if not found else print(f"    in {folder}")
    print(f"{len(suites) - wrong} of {len(suites)} suites are right, without findings")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
