"""Cases in several processes: what crashes, hangs or breaks the device in one ends no other.

A process is fresh, not forked, since a fork of one that has used CUDA cannot; it checks one case
after the other until one breaks it. A kernel that fails an assertion ends the use of the device in
its whole process: what a process tells then is the last that it tells.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing
import os
import queue
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gpu.result import Case, Outcome, Result

_START_SECONDS = 240.0
_MORE_SECONDS = 60.0
_STARTING = threading.Lock()

Check = Callable[[Case], Result]


@dataclass(frozen=True, slots=True)
class Place:
    """How cases are checked."""

    module: str
    """Has the function `check(case) -> Result`; processes import it."""
    is_apart: Callable[[Case], bool]
    """Which cases start processes of their own, and are checked by threads of this one."""
    settings: Mapping[str, str]
    """The environment of the processes, beside this one's."""


def judged(
    cases: Sequence[Case], place: Place, jobs: int, until: float, more: float = _MORE_SECONDS
) -> Iterator[Result]:
    """The results of cases, as they come; those not begun at `until`, a time of
    `time.monotonic()`, or not ended `more` seconds behind it, are not reached."""
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    given = (waiting, results, place, until)
    for _ in range(min(jobs, len(cases))):
        threading.Thread(target=_serve, args=given, daemon=True).start()
    left = dict.fromkeys(cases)
    while left:
        try:
            found = results.get(timeout=max(until + more - time.monotonic(), 0.001))
        except queue.Empty:
            for case in left:
                yield Result(case, Outcome.NOT_REACHED, "it was not ended")
            return
        del left[found.case]
        yield found


def _serve(
    waiting: queue.SimpleQueue[Case],
    results: queue.SimpleQueue[Result],
    place: Place,
    until: float,
) -> None:
    worker = Worker(place)
    check: Check = importlib.import_module(place.module).check
    with suppress(queue.Empty):
        while True:
            case = waiting.get_nowait()
            begun = time.monotonic()
            if begun > until:
                results.put(Result(case, Outcome.NOT_REACHED))
                continue
            try:
                found = check(case) if place.is_apart(case) else worker.result(case)
            except Exception as error:  # the suite's own fault, but told with the others
                found = failed(case, error)
            results.put(replace(found, seconds=time.monotonic() - begun))
    worker.stop()


def failed(case: Case, error: BaseException) -> Result:
    """What is told of a case whose check has raised."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return Result(
        case, Outcome.WRONG, line[:300], "".join(traceback.format_exception(error))[-6000:]
    )


class Worker:
    """A process that checks cases, started where it is needed, and again where it has ended."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process: Any = None
        self._connection: Any = None
        self._log = Path(tempfile.mkstemp(prefix="plait-gpu-", suffix=".log")[1])

    def result(self, case: Case) -> Result:
        """How a case ended in the process."""
        try:
            if self._process is None:
                self._start()
            self._connection.send(case)
            if not self._connection.poll(case.limit):
                self.stop()
                return Result(case, Outcome.WRONG, f"stuck: no result after {case.limit:.0f} s")
            found, is_broken = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(10)
            status, text = self._process.exitcode, self._log.read_text(errors="replace")[-6000:]
            self.stop(remove=False)
            told = [line for line in text.splitlines() if line.startswith("Fatal")]
            return Result(
                case, Outcome.WRONG, "; ".join([f"died with status {status}", *told]), text
            )
        if is_broken:
            self.stop(remove=False)
        return found

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        given = (theirs, self._place.module, dict(self._place.settings), str(self._log))
        self._process = context.Process(target=_work, args=given, daemon=True)
        with _STARTING:  # the environment and the main module are read meanwhile
            self._process.start()
        theirs.close()
        if not self._connection.poll(_START_SECONDS):
            raise OSError("a process did not start")
        self._connection.recv()

    def stop(self, *, remove: bool = True) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = None
        if remove:
            self._log.unlink(missing_ok=True)


def _work(connection: Connection, module: str, settings: dict[str, str], log: str) -> None:
    """Check what comes, until nothing does or the device is broken."""
    output = os.open(log, os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    os.environ.update(settings)
    check: Check = importlib.import_module(module).check
    connection.send("ready")
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        try:
            found = check(case)
        except Exception as error:  # whatever comes here is the case's
            found = failed(case, error)
        broken = _breaks_device(case)
        if broken is not None and found.outcome is not Outcome.WRONG:
            found = failed(case, broken)
        connection.send((found, broken is not None))
        gc.collect()


def _breaks_device(case: Case) -> Exception | None:
    """What the device says to a process that can use it no longer."""
    if not case.device.startswith("cuda"):
        return None
    import torch  # which may take longer than a case has

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        return error
    return None
