"""Weak references of the caller, called: what they point to is read anew in each call."""

from __future__ import annotations

import gc

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame
from plait_bytecode_tracer.sources import Source
from plait_bytecode_tracer.variables import Known, Variable


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
