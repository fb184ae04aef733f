"""Signals that arrive while torch must not be interrupted: their handlers run afterwards.

Python runs a signal's handler between any two instructions of the main thread. torch calls Python
from C++ where an exception, as Ctrl-C raises it, ends the process, and its modes are switched on
and off in Python, where an exception leaves them on.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed leaves it out
import _thread
import functools
import signal
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Handler = Callable[[int, types.FrameType | None], Any]

_SIGNALS = tuple(map(int, sorted(signal.valid_signals())))
_NO_HANDLER = frozenset((int, type(None)))
_INSISTING = 3
"""How often Ctrl-C comes before it is obeyed at once, wherever that is."""


class Interrupted(BaseException):
    """A signal has arrived. Not an Exception: nothing in a compiler handles it."""


class HeldInterrupts:
    """Signals of the main thread, noted instead of handled from `hold` until `release`.

    Those whose handlers are not functions of Python's are left alone.
    """

    def __init__(self) -> None:
        self.handlers = python_handlers()
        self.arrived: list[int] = []
        """The numbers of the signals that have come, in order."""
        self._is_holding = False

    def hold(self) -> None:
        self._is_holding = True
        for number in self.handlers:
            _signal.signal(number, self._note)

    def release(self) -> None:
        """Let the program's handlers run again; what one of them raises meanwhile is raised when
        all are there."""
        self._is_holding = False
        waiting, error = dict(self.handlers), None
        while waiting:
            try:
                for number in [*waiting]:
                    _signal.signal(number, waiting[number])
                    del waiting[number]
            except BaseException as found:  # of a handler that is there again
                error = found
        if error is not None:
            raise error

    def deliver(self) -> None:
        """Have the noted signals handled, and raise what their handlers raise."""
        for number in self.arrived:
            signal.raise_signal(number)

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        self.arrived.append(number)
        insists = number == signal.SIGINT and self.arrived.count(number) >= _INSISTING
        if insists or not self._is_holding:
            self.handlers[number](number, frame)


_current: HeldInterrupts | None = None
"""Of the call of `without_interrupts` that the main thread is in, while it may be stopped."""
_is_inside = False
"""Whether the main thread is in a call of `without_interrupts`."""


def python_handlers() -> dict[int, Handler]:
    """The handlers of signals that are functions of Python's, by number."""
    found = zip(_SIGNALS, map(_signal.getsignal, _SIGNALS), strict=True)
    # Others are numbers, or None. This runs at calls of compiled functions.
    return {number: handler for number, handler in found if type(handler) not in _NO_HANDLER}


def is_main_thread() -> bool:
    """Whether this is the thread in which Python runs the handlers of signals."""
    return _thread.get_ident() == threading.main_thread().ident


def without_interrupts(run: Callable[[Sequence[int]], R]) -> R:
    """`run(arrived)`, which raises Interrupted soon after a signal has `arrived`.

    Then the signal's handler runs, and what it raises goes to the caller. If it raises nothing,
    it is run again, and this time to the end, before handlers run. Ctrl-C pressed three times is
    obeyed at once. A call inside of another is part of that.
    """
    if not is_main_thread():
        return run(())
    if _is_inside:
        return run(() if _current is None else _current.arrived)
    try:
        return _held(run, may_stop=True)
    except Interrupted:
        return _held(run, may_stop=False)


def _held(run: Callable[[Sequence[int]], R], *, may_stop: bool) -> R:
    global _current, _is_inside
    held = HeldInterrupts()
    try:
        held.hold()
        _current, _is_inside = held if may_stop else None, True
        return run(held.arrived if may_stop else ())
    finally:
        _current, _is_inside = None, False
        held.release()
        held.deliver()


def uninterrupted(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose calls are made by `without_interrupts`: it calls `stop_if_interrupted`
    where it may stop, and must leave all as it was then."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return without_interrupts(lambda arrived: function(*args, **kwargs))

    return call


class _Limits(threading.local):
    """What may end the work of one thread."""

    check: Callable[[], object] | None = None
    left: Callable[[], float] | None = None


_limits = _Limits()


@contextmanager
def limited_by(
    check: Callable[[], object], left: Callable[[], float] | None = None
) -> Iterator[None]:
    """Have `stop_if_interrupted` call `check` in this thread, which raises where work is to end.

    Beside what such a block inside another one is limited by. What it raises should be no
    Exception: compilers handle these. `left` tells how many seconds are left till then, if that is
    known: see `seconds_left`.
    """
    outer, outer_left = _limits.check, _limits.left
    known = [each for each in (left, outer_left) if each is not None]

    def both() -> None:
        check()
        if outer is not None:
            outer()

    _limits.check = both
    _limits.left = (lambda: min(each() for each in known)) if known else None
    try:
        yield
    finally:
        _limits.check, _limits.left = outer, outer_left


def seconds_left() -> float | None:
    """How many seconds the work of this thread may still take; None where nothing limits them. What
    could as well be left undone is to leave most of them to what could not."""
    return None if _limits.left is None else _limits.left()


def stop_if_interrupted() -> None:
    """Raise Interrupted where a signal has arrived in the call of `without_interrupts` that this
    thread is in; or what `limited_by` has it raise."""
    if _current is not None and _current.arrived and is_main_thread():
        raise Interrupted
    if _limits.check is not None:
        _limits.check()
