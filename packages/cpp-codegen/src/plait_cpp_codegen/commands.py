"""Commands that are run and waited for, and ended with what they have begun."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from plait_utils.interrupts import Interrupted, is_main_thread, without_interrupts

_MOST_BYTES = 1 << 20
"""What is read of a command's output."""
_SLICE_SECONDS = 0.05
"""How often a wait looks for signals."""
_endings: list[int] = []
"""Not empty where commands of threads are to end."""


def run_command(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command; its exit status and what it wrote to standard output and error.

    It runs in a process group of its own, which is killed if it does not end in `timeout` seconds
    or this process is interrupted. Its output goes to memory rather than through pipes, which
    a process that it leaves behind (a compile server) would hold open.

    Raises OSError where it cannot be run, subprocess.TimeoutExpired where it did not end.
    """
    if not is_main_thread():
        return _run(command, timeout, environment, _endings)
    return without_interrupts(lambda arrived: _run(command, timeout, environment, arrived))


def end_commands() -> None:
    """End what threads beside the main one run, now and later: the process is about to end.

    `run_command` raises Interrupted there.
    """
    _endings.append(signal.SIGTERM)


def _run(
    command: Sequence[str],
    timeout: float,
    environment: Mapping[str, str] | None,
    arrived: Sequence[int],
) -> tuple[int, str, str]:
    with (
        open(os.memfd_create("output"), "w+b") as output,
        open(os.memfd_create("errors"), "w+b") as errors,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            process_group=0,
        )
        try:
            status = _status(process, timeout, arrived)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read(_MOST_BYTES).decode(errors="replace"))
    return status, texts[0], texts[1]


def _status(process: subprocess.Popen[bytes], timeout: float, arrived: Sequence[int]) -> int:
    """The exit status, as soon as there is one."""
    deadline = time.monotonic() + timeout
    with _waiting(process) as wait:
        while True:
            wait()
            status = process.poll()
            if status is not None:
                return status
            if arrived:
                raise Interrupted
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, timeout)


@contextlib.contextmanager
def _waiting(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], object]]:
    """What waits for the end of a process, or a while."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # no Linux, or one before 5.3, or forbidden
        yield functools.partial(_wait_by_asking, process)
        return
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        yield functools.partial(ended.poll, _SLICE_SECONDS * 1000)
    finally:
        os.close(descriptor)


def _wait_by_asking(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SLICE_SECONDS)
