"""Cases in forked processes: a crash or a hang costs the case, and not the session."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from gradients.score import NOT_STARTED, Outcome, Verdict

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Task:
    """Some cases that one process judges, one after the other."""

    suite: str
    name: str
    judge: Callable[[], Iterable[Verdict]]


@dataclass
class _Running:
    task: Task
    process: BaseProcess
    source: Connection
    deadline: float
    verdicts: list[Verdict] = field(default_factory=list)


def judged(
    tasks: Sequence[Task], jobs: int, limit: float, until: float
) -> Iterator[tuple[Task, Sequence[Verdict]]]:
    """Each task with its verdicts, as they are finished.

    Args:
        tasks: what to judge, in the order in which they are started.
        jobs: how many processes run at once; 0 judges in this process, without limits.
        limit: seconds that a task may take.
        until: when, by `time.monotonic`, all are to be finished.
    """
    if not jobs:
        for task in tasks:
            yield task, list(task.judge())
        return
    waiting = list(reversed(tasks))
    running: list[_Running] = []
    while waiting or running:
        now = time.monotonic()
        while waiting and len(running) < jobs and now < until:
            running.append(_started(waiting.pop(), min(now + limit, until)))
        if not running:
            break
        soonest = min(each.deadline for each in running)
        ready = wait([each.source for each in running], max(0.0, soonest - now))
        for each in list(running):
            is_over = _take(each) if each.source in ready else False
            late = time.monotonic() >= each.deadline
            if is_over or late:
                running.remove(each)
                yield each.task, [*each.verdicts, *_ended(each, late and not is_over)]
    for task in reversed(waiting):
        yield task, [Verdict(task.name, Outcome.UNFINISHED, NOT_STARTED)]


def _started(task: Task, deadline: float) -> _Running:
    source, sink = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_judge, args=(task, sink), daemon=False)
    process.start()
    sink.close()
    return _Running(task, process, source, deadline)


def _judge(task: Task, sink: Any) -> None:
    os.setpgid(0, 0)  # so that compilers it has started end with it
    for verdict in task.judge():
        sink.send(verdict)
    sink.send(None)
    sink.close()


def _take(running: _Running) -> bool:
    """Take a verdict; whether there are no more."""
    try:
        verdict = running.source.recv()
    except EOFError:
        return True
    if verdict is None:
        running.process.join()
        return True
    running.verdicts.append(verdict)
    return False


def _ended(running: _Running, late: bool) -> list[Verdict]:
    """What became of the case at which the process ended, if it ended at one."""
    process, task = running.process, running.task
    if late and process.pid is not None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
    process.join()
    running.source.close()
    done = f"after {running.verdicts[-1].case}" if running.verdicts else "at its first case"
    if late:
        return [Verdict(task.name, Outcome.UNFINISHED, f"took too long {done}")]
    if process.exitcode:
        return [Verdict(task.name, Outcome.WRONG, f"died ({process.exitcode}) {done}")]
    return []
