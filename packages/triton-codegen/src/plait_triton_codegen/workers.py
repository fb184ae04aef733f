"""Processes that compile kernels side by side, and the jobs that wait for one.

Triton holds Python's lock while it compiles: threads take their turns. So fresh interpreters do it
(`worker.py`), never forks of this process, which may have a GPU open. A thread of this process
hands one job after the other to each of them, so whoever is free takes the next. They end with this
process, however it ends, since their input does then; and when they have had nothing to do for some
seconds. What they cannot do, this process does itself.
"""

from __future__ import annotations

import atexit
import enum
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plait_triton_codegen.errors import KernelCompilationError, TritonCodegenError
from plait_triton_codegen.interpreting import is_interpreted
from plait_triton_codegen.jobs import (
    KernelJob,
    UnknownLaunchError,
    compiled,
    compiled_in_scratch,
    machine_code,
)
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.processes import WorkerProcess, can_start, search_path
from plait_triton_codegen.versions import unusable
from plait_triton_codegen.worker import CODE, READY, TROUBLE
from plait_utils import get_logger, usable_processors
from plait_utils.interrupts import stop_if_interrupted

MOST_WORKERS = 16
_START_SECONDS = 60.0
"""How long a worker may take to load Triton."""
_JOB_SECONDS = 300.0
"""How long it may take for one kernel."""
_IDLE_SECONDS = 8.0
"""How long it waits for another one before it ends."""
_SLICE_SECONDS = 0.05
"""How often who waits looks whether it may go on."""
_MOST_FAILURES = 3
"""How many workers may end by themselves before no further ones are started."""


class _State(enum.Enum):
    WAITING = enum.auto()
    TAKEN = enum.auto()
    LEFT = enum.auto()
    """No worker can do it: this process does it itself."""
    DONE = enum.auto()


@dataclass(slots=True, eq=False)
class Compilation:
    """A kernel on its way to machine code."""

    job: KernelJob
    keep: Callable[[bytes], object]
    """Is called with the machine code as soon as it is there, in whatever thread."""
    state: _State = _State.WAITING
    code: bytes = b""
    error: TritonCodegenError | None = None

    def end(self, answer: bytes | TritonCodegenError) -> None:
        """Note what came of it; the state is set by who holds the lock."""
        if isinstance(answer, TritonCodegenError):
            self.error = answer
        else:
            self.code = answer
            try:
                self.keep(answer)
            except Exception as error:  # it is there all the same
                get_logger("triton").info("%s is not kept: %s", self.job.name, error)


@dataclass(slots=True, eq=False)
class Workers:
    """The workers of this process."""

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiting: deque[Compilation] = field(default_factory=deque)
    _known: dict[bytes, Compilation] = field(default_factory=dict)
    """Those that are not done, by their jobs: who asks for one again waits for the same."""
    _processes: set[WorkerProcess] = field(default_factory=set)
    _count: int = 0
    """Workers that run or are about to."""
    _idle: int = 0
    """Those of them that have nothing to do, or are still loading Triton."""
    _failures: int = 0
    """How many have ended by themselves."""
    _is_closed: bool = False

    def start(self, count: int) -> None:
        """Have at least so many workers, which load Triton meanwhile."""
        with self._changed:
            missing = count - self._count
        self._add(missing)

    def submit(self, job: KernelJob, keep: Callable[[bytes], object], most: int) -> Compilation:
        """Have a kernel compiled.

        Args:
            keep: is called with the machine code as soon as it is there, in whatever thread.
            most: how many workers may work, as `TritonOptions.workers`.
        """
        key = job.to_json()
        with self._changed:
            known = self._known.get(key)
            if known is not None:
                return known
            made = self._known[key] = Compilation(job, keep)
            self._waiting.append(made)
            missing = min(len(self._waiting) - self._idle, worker_limit(most) - self._count)
            self._changed.notify_all()
        self._add(missing)
        return made

    def wait(self, compilations: Sequence[Compilation]) -> None:
        """Until all are done, in this thread where workers cannot do them: it would keep those
        from getting their jobs while Triton holds Python's lock."""
        while True:
            with self._changed:
                own = next((each for each in compilations if self._is_own(each)), None)
                if own is not None:
                    self._take(own)
                elif all(each.state is _State.DONE for each in compilations):
                    return
                else:
                    self._changed.wait(_SLICE_SECONDS)
            if own is not None:
                try:
                    own.end(_compiled_here(own.job))
                except BaseException:
                    self._leave(own)
                    raise
                self._end(own)
            stop_if_interrupted()

    def close(self) -> None:
        """End the workers, whatever they are at."""
        with self._changed:
            self._is_closed = True
            processes = [*self._processes]
            self._changed.notify_all()
        for process in processes:
            process.kill()

    def forget(self) -> None:
        """In a forked child, whose workers these are not: their input is to end with its parent."""
        for process in self._processes:
            process.disown()

    def _is_own(self, each: Compilation) -> bool:
        if each.state is _State.WAITING:
            return self._count == 0
        return each.state is _State.LEFT

    def _take(self, one: Compilation) -> None:
        if one.state is _State.WAITING:
            self._waiting.remove(one)
        one.state = _State.TAKEN

    def _leave(self, one: Compilation) -> None:
        with self._changed:
            one.state = _State.LEFT
            self._changed.notify_all()

    def _end(self, one: Compilation) -> None:
        with self._changed:
            one.state = _State.DONE
            self._known.pop(one.job.to_json(), None)
            self._changed.notify_all()

    def _add(self, count: int) -> None:
        """Start further workers, if any can be had."""
        for _ in range(count):
            with self._changed:
                if self._failures >= _MOST_FAILURES or self._is_closed or not can_start():
                    return
                self._count += 1
                self._idle += 1
            thread = threading.Thread(target=self._serve, name="plait-kernels", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # as at a process's end
                self._less()

    def _less(self, failures: int = 0) -> None:
        with self._changed:
            self._count -= 1
            self._idle -= 1
            self._failures += failures
            self._changed.notify_all()

    def _serve(self) -> None:
        """A thread: what one worker does from its start to its end."""
        process = None
        failures = 1
        try:
            process = WorkerProcess()
            with self._changed:
                self._processes.add(process)
            process.send("\0".join(search_path()).encode("utf-8", "surrogateescape"))
            if process.receive(_START_SECONDS) == READY:
                failures = self._work(process)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            get_logger("triton").info("no process compiles kernels: %s", error)
        finally:
            self._less(failures)
            if process is not None:
                with self._changed:
                    self._processes.discard(process)
                process.kill()
                process.close()

    def _work(self, process: WorkerProcess) -> int:
        """Hand jobs to a worker until none has come for a while; how often it has failed."""
        while (one := self._next()) is not None:
            if not self._has_done(process, one):
                return 0 if self._is_closed else 1
        return 0

    def _next(self) -> Compilation | None:
        """The next job, which a worker takes; None where none has come for a while."""
        deadline = time.monotonic() + _IDLE_SECONDS
        with self._changed:
            while not self._waiting or self._is_closed:
                left = deadline - time.monotonic()
                if left <= 0 or self._is_closed:
                    return None
                self._changed.wait(left)
            one = self._waiting.popleft()
            one.state = _State.TAKEN
            self._idle -= 1
            return one

    def _has_done(self, process: WorkerProcess, one: Compilation) -> bool:
        """Have a worker do a job; whether it can do another one."""
        answer = None
        try:
            process.send(one.job.to_json())
            answer = process.receive(_JOB_SECONDS)
        except OSError as error:
            get_logger("triton").info("a process that compiles kernels has ended: %s", error)
        finally:
            with self._changed:
                self._idle += 1
        crash = process.crash() if answer is None else None
        if crash is not None:
            one.end(_refused(one.job, f"its compiler has crashed ({crash})"))
        elif answer is None or answer.startswith(TROUBLE):
            self._leave(one)
            return answer is not None
        elif answer.startswith(CODE):
            one.end(answer[1:])
        else:
            one.end(_refused(one.job, answer[1:].decode(errors="replace")))
        self._end(one)
        return answer is not None


def worker_limit(chosen: int = -1) -> int:
    """How many workers may work, where `TritonOptions.workers` is chosen.

    By itself as many as this process may use processors, where they are two or more; processes that
    a launcher has started together share them.
    """
    if chosen >= 0:
        return chosen
    together = os.environ.get("LOCAL_WORLD_SIZE", "")
    usable = usable_processors() // max(int(together) if together.isdecimal() else 1, 1)
    return min(usable, MOST_WORKERS) if usable > 1 else 0


def prepare(options: TritonOptions | None = None) -> None:
    """Start processes that load Triton's compiler, while a program is traced that will need it.

    One fewer than may work later, since this process needs a processor meanwhile.
    """
    chosen = options or TritonOptions.from_env()
    if chosen.native_host and not is_interpreted():
        limit = worker_limit(chosen.workers)
        current().start(min(limit, max(limit - 1, 1)))


def _compiled_here(job: KernelJob) -> bytes | TritonCodegenError:
    """A kernel's machine code, of this process."""
    try:
        try:
            made = compiled(job)
        except OSError:  # Triton's cache cannot be written
            made = compiled_in_scratch(job)
        return machine_code(job, made)
    except UnknownLaunchError as error:
        return _unknown(str(error))
    except ImportError as error:  # no kernel of the program can be compiled
        return unusable(error)
    except Exception as error:  # of Triton's compiler, whatever it is
        return _refused(job, f"{type(error).__name__}: {error}")


def _refused(job: KernelJob, message: str) -> TritonCodegenError:
    unknown = f"{UnknownLaunchError.__name__}: "
    if message.startswith(unknown):
        return _unknown(message.removeprefix(unknown))
    return KernelCompilationError(job.name, message)


def _unknown(message: str) -> TritonCodegenError:
    return TritonCodegenError(message, hint="Programs with such kernels are launched from Python.")


_current = Workers()


def current() -> Workers:
    """The workers of this process."""
    return _current


def _forget() -> None:
    """In a forked child."""
    global _current
    before, _current = _current, Workers()
    before.forget()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: current().close())
