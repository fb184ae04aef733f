"""All cases in processes that follow each other: `python -m warmstarts`, in `meta`.

Each pair of worlds is met twice, so that later processes find entries of both.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).parent.parent / "tests" / "warm_start"
PHASES = (0, 1, 0, 1)


def results(module, folder, phase, seed):
    """What a process of its own finds of the cases in a module."""
    settings = {"PHASE": str(phase), "PYTHONHASHSEED": str(seed), "PLAIT_VERIFY": "0"}
    cache = {"PLAIT_CACHE_DIR": str(Path(folder) / "cache"), "PLAIT_CXX_OPTIMIZATION": "-O0"}
    done = subprocess.run(
        [sys.executable, "driver.py", module],
        cwd=folder,
        env={**os.environ, **settings, **cache},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main():
    wrong = []
    for module in ("cases", "hard_cases", "gradient_cases", "around_cases"):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
            for seed, phase in enumerate(PHASES):
                found = results(module, folder, phase, seed + 1)
                bad = [name for name, each in found.items() if not each.get("same")]
                restored = sum(bool(each.get("restored")) for each in found.values())
                print(
                    f"{module}, process {seed + 1} in world {phase}: {restored} of {len(found)} "
                    f"restored, {len(found) - len(bad)} agree with eager",
                    flush=True,
                )
                wrong += [f"{module}.{name} in process {seed + 1}: {found[name]}" for name in bad]
    print(*wrong, sep="\n")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main() > 0)
