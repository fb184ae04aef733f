"""Which processor this machine has, and how many of them a process may use."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.lru_cache(maxsize=1)
def processor_vendor() -> str:
    """Who made the processor, as Linux names them (`GenuineIntel`); where nothing says so, what the
    platform calls the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    import platform  # takes as long as all else here

    return platform.processor()


def usable_processors() -> int:
    """How many processors this process may use: those it is bound to, and no more than the time
    that its control group gets (cgroup v2), at least one."""
    try:
        bound = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        bound = os.cpu_count() or 1
    return max(min(bound, _processors_in_time(_CGROUP_TIME) or bound), 1)


_CGROUP_TIME = Path("/sys/fs/cgroup/cpu.max")


def _processors_in_time(file: Path) -> int | None:
    """The microseconds of processors in a period over those of the period; None without a limit."""
    try:
        quota, period = file.read_text().split()
        return max(round(int(quota) / int(period)), 1)
    except (OSError, ValueError, ZeroDivisionError):
        return None  # "max" is no number
