"""Which processor this machine has."""

from __future__ import annotations

import functools
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
