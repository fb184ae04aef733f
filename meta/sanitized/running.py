"""Processes whose generated code the sanitizers watch, and what they have found.

The flags build kernels, host programs, the native runtime and the native check of guards with both
sanitizers; temporaries are then blocks of their own rather than parts of one arena, and none is
kept for the next call. Their libraries are loaded before Python, so that torch's own tensors lie
among watched memory too. What is found goes to files, and the process goes on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLAGS = (
    *("-fsanitize=address,undefined", "-fsanitize-recover=address,undefined"),
    *("-fno-omit-frame-pointer", "-g1"),
    # What spares g++ 40% of its time: accesses are checked by calls rather than in line, sizes of
    # objects by AddressSanitizer alone, which knows them all, and two passes are left out.
    *("--param", "asan-instrumentation-with-call-threshold=0", "-fno-sanitize=object-size"),
    *("-fno-tree-pta", "-fno-tree-ter"),
)
_LIBRARIES = ("libasan.so", "libubsan.so")
_OPTIONS = "detect_leaks=0:halt_on_error=0:print_stacktrace=1:log_path={}"
_FOUND = re.compile(r"ERROR: AddressSanitizer: .*|.*runtime error: .*")


def libraries() -> list[str]:
    """Where the sanitizers' libraries lie; nothing where g++ has none."""
    if shutil.which("g++") is None:
        return []
    command = ["g++", *(f"-print-file-name={name}" for name in _LIBRARIES)]
    found = [
        subprocess.run(
            [command[0], each], capture_output=True, text=True, check=True
        ).stdout.strip()
        for each in command[1:]
    ]
    return found if all(Path(each).is_absolute() for each in found) else []


def environment(folder: Path) -> dict[str, str]:
    """What a process needs whose findings go to files in a folder."""
    return {
        **os.environ,
        "PLAIT_CXXFLAGS": " ".join(FLAGS),
        "PLAIT_CXX_OPTIMIZATION": "-O1",
        # Which themselves are not watched: a third of their time. With these flags they build what
        # takes no others, the native check of guards.
        "CC": " ".join(["env -u LD_PRELOAD gcc", *FLAGS]),
        "CXX": " ".join(["env -u LD_PRELOAD g++", *FLAGS]),
        "PLAIT_CACHE_DIR": str(folder / "cache"),
        "LD_PRELOAD": " ".join(libraries()),
        "ASAN_OPTIONS": _OPTIONS.format(folder / "found"),
        "UBSAN_OPTIONS": _OPTIONS.format(folder / "found"),
    }


def run(
    folder: Path, command: Sequence[str], where: Path, more: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run Python with arguments in a folder; its exit status and what the sanitizers have found."""
    settings = {**environment(folder), **(more or {})}
    done = subprocess.run([sys.executable, *command], cwd=where, env=settings, check=False)
    return done.returncode, findings(folder)


def findings(folder: Path) -> list[str]:
    """One line for each thing that was found, without addresses, each once."""
    lines = [
        line
        for each in sorted(folder.glob("found*"))
        for line in each.read_text(errors="replace").splitlines()
    ]
    found = [match[0] for match in map(_FOUND.search, lines) if match]
    return list(dict.fromkeys(re.sub(r"0x[0-9a-f]+|==\d+==", "…", each) for each in found))
