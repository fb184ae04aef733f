"""Signals that arrive while a call is traced: their handlers run when the trace has stopped.

Python runs a signal's handler between any two instructions, and torch calls Python from C++
where an exception, as Ctrl-C raises it, would end the process.
"""

from __future__ import annotations

import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

R = TypeVar("R")
Handler = Callable[[int, types.FrameType | None], Any]


class TraceInterrupt(BaseException):
    """A signal has arrived. Not an Exception: nothing in the tracer handles it."""


def without_interrupts(run: Callable[[Sequence[int]], R]) -> R:
    """`run(arrived)`, which raises TraceInterrupt soon after a signal has `arrived`.

    Then the signal's handler runs, and what it raises goes to the caller. If it raises
    nothing, it is run again, and this time to the end, before handlers run.
    """
    if threading.current_thread() is not threading.main_thread():
        return run(())  # Python runs handlers in the main thread only
    arrived: list[int] = []
    with _noted(arrived):
        try:
            return run(arrived)
        except TraceInterrupt:
            pass
    with _noted([]):
        return run(())


@contextmanager
def _noted(arrived: list[int]) -> Iterator[None]:
    """Note signals instead of handling them, and handle them at the end."""

    def note(number: int, frame: types.FrameType | None) -> None:
        arrived.append(number)

    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    handlers: dict[int, Handler] = {n: h for n, h in found.items() if callable(h)}
    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            handlers[number](number, sys._getframe())
