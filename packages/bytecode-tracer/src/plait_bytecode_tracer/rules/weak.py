"""Weak references: of the caller, called; and made in the trace, to what the caller holds."""

from __future__ import annotations

import gc
import weakref
from typing import NoReturn

from plait_bytecode_tracer.classes import type_of
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.sources import Source
from plait_bytecode_tracer.variables import CallableVariable, Known, Variable


def referent(frame: Frame, reference: Known) -> Variable:
    """`reference()`: the object, or None where it is dead."""
    if any(
        isinstance(call, Known) and call.value is gc.collect for call, _, _ in frame.state.deferred
    ):
        raise TraceBreakError("GB0013", "a weak reference is read after a garbage collection")
    source = reference.source
    if source is None:
        source = frame.state.constants.source(reference.value, "a weak reference")
    read = Source(f"{source.code}()", f"{source.text}()", source)
    return frame.state.wrap(reference.value(), read)


@builtin(weakref.ref)
def weak_reference(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """A weak reference to an object of the caller's, made after the graph and not called before.

    A break would resume with the object held by the frames around it, which would keep it
    alive: so none may come after, and what the trace itself has made is not referred to.
    """
    state = frame.state
    held = len(args) == 1 and not kwargs and getattr(args[0], "source", None) is not None
    if not held or not state.to_the_end or not _can_be_referred_to(args[0]):
        raise TraceBreakError("GB0013", "a weak reference is made")
    state.needs_end = True
    return CallableVariable(weakref.ReferenceType, [args[0]], {}, _call, weakref.ref)


def _can_be_referred_to(target: Variable) -> bool:
    return bool(getattr(type_of(target), "__weakrefoffset__", 0))


def _call(frame: Frame, *args: Variable) -> NoReturn:
    raise TraceBreakError("GB0013", "a weak reference that the code has made is called")
