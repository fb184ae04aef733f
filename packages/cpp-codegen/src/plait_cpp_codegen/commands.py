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
from typing import BinaryIO

from plait_utils.background import endings
from plait_utils.forks import starting_process
from plait_utils.interrupts import (
    Interrupted,
    is_main_thread,
    stop_if_interrupted,
    without_interrupts,
)

_MOST_BYTES = 1 << 20
"""What is read of a command's output."""
_SLICE_SECONDS = 0.05
"""How often a wait looks for signals."""


def run_command(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command; its exit status and what it wrote to standard output and error.

    As :func:`run_commands` does.
    """
    return run_commands([command], timeout, environment)[0]


def run_commands(
    commands: Sequence[Sequence[str]],
    timeout: float,
    environment: Mapping[str, str] | None = None,
    meanwhile: Callable[[], object] | None = None,
    ended: Callable[[int, int], object] | None = None,
) -> list[tuple[int, str, str]]:
    """Run commands side by side; the exit status of each and what it wrote to standard output and
    error.

    Each runs in a process group of its own; all are killed if they do not end in `timeout` seconds
    or this process is interrupted; those of other threads than the main one, when it ends; and
    where `plait_utils.interrupts.limited_by` ends the work of this thread. Their output goes to
    memory rather than through pipes, which a process that one leaves behind (a compile server)
    would hold open.

    `meanwhile` is called when all run; where a signal interrupts this, once more.
    `ended` is called with how many of them have ended, in their order, and how many there are.

    Raises OSError where one cannot be run, subprocess.TimeoutExpired where one did not end.
    """
    if not is_main_thread():
        return _run(commands, timeout, environment, endings(), meanwhile, ended)
    return without_interrupts(
        lambda arrived: _run(commands, timeout, environment, arrived, meanwhile, ended)
    )


def _run(
    commands: Sequence[Sequence[str]],
    timeout: float,
    environment: Mapping[str, str] | None,
    arrived: Sequence[int],
    meanwhile: Callable[[], object] | None,
    ended: Callable[[int, int], object] | None,
) -> list[tuple[int, str, str]]:
    deadline = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_started(command, environment)) for command in commands]
        if meanwhile is not None:
            meanwhile()
        for number, (process, _, _) in enumerate(started):
            if ended is not None:
                ended(number, len(started))
            _wait(process, deadline, timeout, arrived)
        return [
            (process.returncode, _written(output), _written(errors))
            for process, output, errors in started
        ]


@contextlib.contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str] | None
) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO, BinaryIO]]:
    """A process and the files of its output and errors; it is killed if it still runs then."""
    with (
        open(os.memfd_create("output"), "w+b") as output,
        open(os.memfd_create("errors"), "w+b") as errors,
    ):
        with starting_process():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                process_group=0,
            )
        try:
            yield process, output, errors
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _written(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(_MOST_BYTES).decode(errors="replace")


def _wait(
    process: subprocess.Popen[bytes], deadline: float, timeout: float, arrived: Sequence[int]
) -> None:
    """Until the process has ended."""
    with _waiting(process) as wait:
        while True:
            wait()
            if process.poll() is not None:
                return
            if arrived:
                raise Interrupted
            stop_if_interrupted()
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
