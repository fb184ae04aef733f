"""Work that nobody waits for, put off while something is compiled.

A process has few cores, and one lock for its Python: what a thread stores or builds for later
would make the call wait that compiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from plait_utils.background import endings
from plait_utils.garbage import collections_are_postponed

_LOOK_SECONDS = 0.02
"""Between two looks."""


def wait_until_quiet(seconds: float, is_wanted: Callable[[], bool] = bool) -> None:
    """Wait until no thread of this process compiles anything, at most some seconds.

    Not within `postponed_collections`, which is what says that something is compiled. The wait
    ends too once `is_wanted()`, or when the process is about to end.
    """
    deadline = time.monotonic() + seconds
    while collections_are_postponed() and not (is_wanted() or endings()):
        if time.monotonic() > deadline:
            return
        time.sleep(_LOOK_SECONDS)
