"""A process that compiles kernels, as the process that has started it sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from plait_triton_codegen.worker import frame_of
from plait_utils.forks import starting_process

WORKER = Path(__file__).with_name("worker.py")
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals that a process gets for what it does itself: the same would happen in this process."""


class WorkerProcess:
    """A fresh interpreter that runs `worker.py`, and the connection to it.

    Raises OSError where none can be had.
    """

    def __init__(self) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # it is to open none
        environment.pop("TRITON_INTERPRET", None)
        flags = ["-I", *(["-B"] if sys.dont_write_bytecode else [])]
        self._connection, other = socket.socketpair()
        try:
            with starting_process():
                self._process = subprocess.Popen(
                    [sys.executable, *flags, str(WORKER)],
                    stdin=other.fileno(),
                    stdout=other.fileno(),
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for this process
                )
        except OSError:
            self._connection.close()
            raise
        finally:
            other.close()

    def send(self, data: bytes) -> None:
        """Raises OSError where it has ended."""
        # Without a signal, which the user's program may not have asked to be spared.
        self._connection.sendall(frame_of(data), socket.MSG_NOSIGNAL)

    def receive(self, seconds: float) -> bytes | None:
        """A frame; None where it has ended. Raises TimeoutError where none comes in so long."""
        deadline = time.monotonic() + seconds
        head = self._read(4, deadline)
        return None if head is None else self._read(int.from_bytes(head, "big"), deadline)

    def _read(self, count: int, deadline: float) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            more = self._connection.recv(count - len(data))
            if not more:
                return None
            data += more
        return bytes(data)

    def kill(self) -> None:
        """End it at once, if it runs, and wait until it has."""
        with contextlib.suppress(OSError):
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    def crash(self) -> str | None:
        """Which signal has ended it, if it was for what it did itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        number = -(self._process.returncode or 0)
        return signal.Signals(number).name if number in _CRASHES else None

    def disown(self) -> None:
        """Forget it in a forked process, whose child it is not."""
        self._process.returncode = 0
        self.close()

    def close(self) -> None:
        """Close the connection, in this process alone."""
        self._connection.close()


def can_start() -> bool:
    """Whether what runs this process is an interpreter that another file can be given to."""
    name = os.path.basename(sys.executable or "")
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def search_path() -> list[str]:
    """`sys.path` for another process, wherever that is."""
    found = []
    for entry in sys.path:
        with contextlib.suppress(OSError):  # the current folder may be gone
            found.append(os.path.abspath(entry))
    return found
