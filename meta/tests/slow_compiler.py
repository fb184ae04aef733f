"""A C++ compiler that waits until it is let go on, so that what happens meanwhile is known."""

from __future__ import annotations

import time

_SCRIPT = """#!/bin/sh
for word in "$@"; do
  case "$word" in --version) exec g++ "$@" ;; esac
done
echo begun >> "{folder}/begun"
while [ ! -e "{folder}/open" ]; do sleep 0.02; done
exec g++ "$@"
"""


class Gate:
    """A compiler that waits while the gate is closed.

    Args:
        folder: holds the script, which is part of what compiled programs are found by.
    """

    def __init__(self, folder):
        self._folder = folder
        self._open = folder / "open"
        self.command = str(folder / "slow-g++")
        script = folder / "slow-g++"
        script.write_text(_SCRIPT.format(folder=folder))
        script.chmod(0o755)
        self.open()

    def open(self):
        self._open.touch()

    def close(self):
        self._open.unlink(missing_ok=True)
        (self._folder / "begun").unlink(missing_ok=True)

    def wait_begun(self, seconds=120):
        """Until the compiler waits."""
        until(lambda: (self._folder / "begun").exists(), seconds)


def until(holds, seconds=120):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it has not come to be so"
        time.sleep(0.01)
