"""Weak references, and other ways to ask which objects are alive.

How long an object lives, Python's own frames and counters decide. A trace knows it of what
the caller keeps alive, and of what live frames of the trace hold; where it does not, the
whole call runs as plain Python.
"""

from __future__ import annotations

import gc
import operator
import sys
import types
import weakref
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.objects.operations import apply, identical
from plait_bytecode_tracer.objects.statics import static_attribute
from plait_bytecode_tracer.outside.liveness import is_held, is_kept
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    FunctionVariable,
    Known,
    ObjectVariable,
    ReferenceVariable,
    Variable,
)

NONE = constant(None)


@builtin(weakref.proxy, weakref.finalize)
def watches(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    raise TraceBreakError("GB0017", "a weak reference is made")


@builtin(
    *(weakref.getweakrefcount, weakref.getweakrefs),
    *(gc.get_referrers, gc.get_referents, gc.get_objects, gc.is_tracked, gc.is_finalized),
    *(sys.getrefcount, sys.getsizeof),
)
def asks_for_memory(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """What tells who holds an object, or how it lies in memory."""
    raise TraceBreakError("GB0017", "the code asks how objects lie in memory, or who holds them")


@builtin(weakref.ref)
def weak_reference(frame: Frame, target: Variable, callback: Variable = NONE, /) -> Variable:
    """A reference without a callback, of which Python keeps one for each object."""
    if not (isinstance(callback, Known) and callback.value is None):
        raise TraceBreakError("GB0017", "a weak reference with a callback is made")
    state = frame.state
    _refuse_local(state)
    real = _real(frame, target)
    if real is not _MADE:
        try:
            reference = weakref.ref(real)
        except TypeError as error:
            raise python_error(error) from error
        source: Source = getattr(target, "source", None) or state.constants.source(real, "object")
        make = state.constants.name(weakref.ref)
        return state.wrap(
            reference, Source(f"{make}({source.code})", f"ref({source.text})", source)
        )
    if not isinstance(target, ObjectVariable | FunctionVariable | Known):
        raise TraceBreakError("GB0017", f"a weak reference to a {describe(target)}")
    if not getattr(type_of(target), "__weakrefoffset__", 0):
        fails(TypeError, f"cannot create weak reference to {type_of(target).__name__!r} object")
    key = id(target.value) if isinstance(target, Known) else id(target)
    known = state.world.references.get(key)
    if known is None:
        known = ReferenceVariable(weakref.ref, [target], {}, _never, weakref.ref)
        state.world.references[key] = known
    return known


_MADE = object()


def _real(frame: Frame, target: Variable) -> Any:
    """The object from outside that a variable stands for, else `_MADE`."""
    if isinstance(target, Known):
        return _MADE if frame.state.made.depends(target.value) else target.value
    if getattr(target, "source", None) is None:
        return _MADE
    real = getattr(target, "original", None)
    if real is None:
        raise TraceBreakError("GB0017", f"a weak reference to a {describe(target)}")
    return real


def _refuse_local(state: TraceState) -> None:
    """Break in the middle of a function that has defined classes or functions of its own.

    Guards would hold them, and so what they refer to.
    """
    for value in state.world.arguments:
        defined = value if isinstance(value, type | types.FunctionType) else type(value)
        if "<locals>" in defined.__qualname__:
            text = f"a weak reference, where {defined.__name__} lives no longer than the call"
            raise TraceBreakError("GB0017", text)


def _never(frame: Frame, *args: Variable) -> NoReturn:
    fails(TypeError, "__call__() takes no arguments")


@builtin(type.__subclasses__)
def subclasses(frame: Frame, cls: Variable, /) -> Variable:
    """The classes that are alive now; one lives on in the guards of what was compiled for it."""
    real = cls.value if isinstance(cls, Known) else object
    if frame.state.made.depends(real) or "<locals>" in getattr(real, "__qualname__", ""):
        raise TraceBreakError("GB0017", "the code asks which subclasses are alive")
    raise TraceBreakError("GB0002", "a call of type.__subclasses__, which is not traced")


def calls_as_reference(reference: weakref.ref[Any]) -> bool:
    """Whether calling a reference gives its object, and nothing of its class's own."""
    return static_attribute(type(reference), "__call__") is weakref.ref.__call__


@builtin(weakref.ref.__call__)
def referent(frame: Frame, reference: Variable, /) -> Variable:
    """`reference()`: the object, or None where it is dead.

    What is dead stays dead. Whether the object is alive, its holders decide.
    """
    state = frame.state
    if isinstance(reference, ReferenceVariable):
        if not is_held(state, reference.args[0]):
            raise TraceBreakError("GB0017", "a weak reference to what the code may have dropped")
        return reference.args[0]
    if not isinstance(reference, Known) or not isinstance(reference.value, weakref.ref):
        raise TraceBreakError("GB0017", "a weak reference of another kind")
    _refuse_local(state)
    real = weakref.ref.__call__(reference.value)
    if real is not None and not is_kept(state, real):
        raise TraceBreakError("GB0017", "a weak reference to what the code may have dropped")
    source = reference.source
    if source is None:
        source = state.constants.source(reference.value, "a weak reference")
    # Not what a reference's class may define, nor what another object would do that is called.
    code = f"{state.constants.name(weakref.ref.__call__)}({source.code})"
    return state.wrap(real, Source(code, f"{source.text}()", source))


def _compares(function: Any) -> Builtin:
    """The rule of `==` or `!=`: by what they refer to while that is alive, else by identity."""

    def rule(frame: Frame, one: Variable, other: Variable, /) -> Variable:
        if not issubclass(type_of(other), weakref.ref):
            return constant(NotImplemented)
        objects = [referent(frame, side) for side in (one, other)]
        if any(isinstance(each, Known) and each.value is None for each in objects):
            return constant(identical(frame, one, other) is (function is operator.eq))
        return apply(frame, function, objects)

    return rule


builtin(weakref.ref.__eq__)(_compares(operator.eq))
builtin(weakref.ref.__ne__)(_compares(operator.ne))
