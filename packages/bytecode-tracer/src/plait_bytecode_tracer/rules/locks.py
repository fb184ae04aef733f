"""Locks: those of the caller's are held while the call runs; those of the trace are twins."""

from __future__ import annotations

import _thread
import threading
from typing import Any, cast

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.instances import instantiate
from plait_bytecode_tracer.outside.locks import LOCKS, Lock
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.twins.threads import Lock as LockTwin
from plait_bytecode_tracer.twins.threads import RLock as RLockTwin
from plait_bytecode_tracer.values.variables import Known, ObjectVariable, Variable


def _taken(frame: Frame, lock: Variable) -> Lock:
    """The real lock of a call. Raises TraceBreakError where it is not followed."""
    if not isinstance(lock, Known) or not isinstance(lock.value, LOCKS) or lock.source is None:
        raise TraceBreakError("GB0002", "a lock that is not read from the call")
    frame.state.needs_end = True
    if not frame.state.to_the_end:
        name = type(lock.value).__name__
        raise TraceBreakError("GB0002", f"the code takes or releases {lock.source.text}, a {name}")
    frame.state.guard_identity(lock.source, lock.value)
    real: Any = lock.value
    return cast(Lock, real)


def _enter(frame: Frame, lock: Variable) -> None:
    real, locks = _taken(frame, lock), frame.state.locks
    depth = locks.depths.get(id(real), 0)
    if depth and isinstance(real, _thread.LockType):
        raise TraceBreakError("GB0002", "the code waits for a lock that it holds itself")
    locks.taken[id(real)] = real
    locks.depths[id(real)] = depth + 1


def _leave(frame: Frame, lock: Variable) -> None:
    real, locks = _taken(frame, lock), frame.state.locks
    depth = locks.depths.get(id(real), 0)
    if not depth:
        raise TraceBreakError("GB0002", "the code releases a lock that was taken before")
    locks.depths[id(real)] = depth - 1


def _acquire(
    frame: Frame, lock: Variable, blocking: Variable | None = None, timeout: Variable | None = None
) -> Variable:
    waits = blocking is None or plain_value(blocking) is True
    if not waits or (timeout is not None and plain_value(timeout) != -1):
        raise TraceBreakError("GB0002", "the code tries to take a lock, and does not wait for it")
    _enter(frame, lock)
    return constant(True)


def _release(frame: Frame, lock: Variable) -> Variable:
    _leave(frame, lock)
    return constant(None)


def _exit(frame: Frame, lock: Variable, *error: Variable) -> Variable:
    _leave(frame, lock)
    return constant(None)


def _locked(frame: Frame, lock: Variable) -> Variable:
    """Whether a lock is held; one that the call takes was free before it."""
    real = _taken(frame, lock)
    if id(real) not in frame.state.locks.taken:
        raise TraceBreakError("GB0002", "the code asks whether a lock is held")
    return constant(frame.state.locks.depths[id(real)] > 0)


def _of(kind: type, twin: type, rule: Builtin, name: str) -> Builtin:
    """The rule of a method for locks of the caller's, and for those of the trace."""

    def method(frame: Frame, lock: Variable, *args: Variable, **kwargs: Variable) -> Variable:
        if isinstance(lock, ObjectVariable) and lock.cls is twin:
            function: Any = vars(twin).get(name) or getattr(twin, name)
            return frame.call(constant(function), [lock, *args], kwargs)
        return rule(frame, lock, *args, **kwargs)

    return method


_RULES: dict[str, Builtin] = {
    "__enter__": _acquire,
    "acquire": _acquire,
    "release": _release,
    "__exit__": _exit,
    "locked": _locked,
}
for _kind, _twin in ((_thread.LockType, LockTwin), (_thread.RLock, RLockTwin)):
    for _name, _rule in _RULES.items():
        if hasattr(_kind, _name):  # RLock has no `locked` before Python 3.14
            builtin(getattr(_kind, _name))(_of(_kind, _twin, _rule, _name))


@builtin(_thread.allocate_lock)
def allocate_lock(frame: Frame) -> Variable:
    return instantiate(frame, LockTwin, [], {})


@builtin(threading.RLock)
def rlock(frame: Frame) -> Variable:
    return instantiate(frame, RLockTwin, [], {})
