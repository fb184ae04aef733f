"""When this process was started: files that changed since may not be what it has loaded."""

from __future__ import annotations

import functools
import os
import time

_LOADED = time.time()


@functools.cache
def process_started() -> float:
    """Seconds since the epoch, up to a hundredth late, which is before Python loads anything.

    Where the system does not say, it is when this module was loaded.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks + 1) / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, ValueError, IndexError, AttributeError):
        return _LOADED


def changed_since_start(status: os.stat_result) -> bool:
    """Whether a file has been written, made or put where it is since this process was started."""
    return max(status.st_mtime, status.st_ctime) > process_started()
