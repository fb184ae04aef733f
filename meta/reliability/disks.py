"""Disks that are full, fill up or cannot be written to, under the cache and the temporary folder.

Each case has file systems of its own, mounted where nobody else sees them. Two processes, one after
the other, must compute what eager does, say once what is wrong and what to do, and leave no entry
that is damaged and none that is half there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from reliability.kills import WORKER

CHECK = """
import sys
from plait_utils import DiskCache, cache_files
bad = [str(each) for each in DiskCache().entries() if not cache_files.is_sound(each)]
bad += [str(each) for each in DiskCache().root.glob("??/building-*")]
print(f"entries {len(DiskCache().entries())}, bad {bad}")
"""
FULL = "dd if=/dev/zero of={} bs=1024 2> /dev/null"
NO_TEMPORARY = (
    *("for each in /tmp /var/tmp; do mount --bind $each $each", "mount -o remount,bind,ro $each"),
    *("done", "cd /proc"),
)
CASES = {
    "a cache of 200 KiB": ("mount -t tmpfs -o size=200k none $CACHE",),
    "a cache without room": ("mount -t tmpfs -o size=64k none $CACHE", FULL.format("$CACHE/fill")),
    "a cache without inodes": ("mount -t tmpfs -o nr_inodes=6 none $CACHE",),
    "a read-only cache": ("mount -t tmpfs -o ro none $CACHE",),
    "a temporary folder without room": (
        *("mount -t tmpfs -o size=64k none $TMPDIR", FULL.format("$TMPDIR/fill")),
    ),
    "a temporary folder of 300 KiB": ("mount -t tmpfs -o size=300k none $TMPDIR",),
    "a read-only temporary folder": ("mount -t tmpfs -o ro none $TMPDIR",),
    "no temporary folder": (*NO_TEMPORARY, "mount -t tmpfs none $CACHE"),
    "room nowhere": (
        *(*NO_TEMPORARY, "mount -t tmpfs -o size=64k none $CACHE", FULL.format("$CACHE/fill")),
    ),
    "all read-only": NO_TEMPORARY,
    "a cache that became read-only": (
        '$PYTHON "$WORKER" 1 0 1 2 > /dev/null',
        *("mount --bind $CACHE $CACHE", "mount -o remount,bind,ro $CACHE"),
    ),
    "files of at most 16 KiB": ("ulimit -f 16",),
}
"""What a shell does before the processes start, by name."""
SILENT = ("a cache that became read-only", "temporary folder")
"""Parts of the names of cases in which all that is needed may be there: nothing need be said."""
TELLING = ("cannot write to the cache folder", "running a program as Python over ATen")


def can_mount() -> bool:
    """Whether this user may have file systems of its own."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def run_disk(
    folder: Path,
    case: str,
    seed: int,
    processes: int = 2,
    settings: Mapping[str, str] | None = None,
) -> list[str]:
    """What went wrong in a case, with what was said; nothing where all was right.

    Args:
        processes: how many, one after the other.
        settings: variables of their environment.
    """
    run = '$PYTHON "$WORKER" {} 0 1 2 2>&1; $PYTHON -c "$CHECK" 2>&1'
    script = "\n".join([*CASES[case], *(run.format(seed + n) for n in range(processes))])
    cache, temporary = folder / "cache", folder / "tmp"
    for each in (cache, temporary):
        each.mkdir(parents=True)
    environment = {
        **os.environ,
        "CACHE": str(cache),
        "PLAIT_CACHE_DIR": str(cache),
        "TMPDIR": str(temporary),
        "PYTHON": sys.executable,
        "WORKER": str(WORKER),
        "CHECK": CHECK,
        "PLAIT_VERIFY": "0",
        "PLAIT_CXX_OPTIMIZATION": "-O0",
        **(settings or {}),
    }
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    wrong = _judged(case, done.stdout.splitlines(), processes)
    return [*wrong, done.stdout[-3000:], done.stderr[-1000:]] if wrong else []


def _judged(case: str, lines: list[str], processes: int) -> list[str]:
    right = [line for line in lines if line.startswith("right")]
    sound = [line for line in lines if line.startswith("entries") and line.endswith("bad []")]
    count = len(right)
    wrong = [] if count == processes else [f"{case}: {count} of {processes} processes were right"]
    wrong += [] if len(sound) == processes else [f"{case}: entries that are not whole"]
    told = [line for line in lines if any(each in line for each in TELLING)]
    least = 0 if any(part in case for part in SILENT) else processes
    if not least <= len(told) <= processes:
        wrong.append(f"{case}: told {len(told)} times")
    if any("Traceback" in line or "Exception" in line for line in lines):
        wrong.append(f"{case}: errors that nobody handled")
    return wrong
