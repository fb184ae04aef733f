"""Functions with a cache: `functools.lru_cache` of the caller's, and made in the trace."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, describe_exception
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.outside.sinks import log_at
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.caches import call_for_tensors, is_tensor_call
from plait_bytecode_tracer.values.cached_calls import (
    ABSENT,
    FirstCall,
    cache_key,
    cached_result,
)
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.keys import constant_key
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
    FunctionVariable,
    Known,
    ObjectKey,
    Remake,
    SequenceVariable,
    SetVariable,
    Variable,
)


def _key_part(frame: Frame, value: Variable) -> Any:
    key = constant_key(frame, value)
    if not isinstance(key, ObjectKey):
        return key
    if isinstance(key.variable, Known):
        return key.variable.value
    raise TraceBreakError("GB0009", f"a cached function of a {describe(value)}")


def call_cached(
    frame: Frame, function: Known, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of a function with a cache.

    What the cache holds is the result, and the guards say that it still does. What it does
    not hold is traced, if that has no effects. After the graph the function is called, so
    that it counts, keeps and drops what it does in Python.
    """
    real, state = function.value, frame.state
    if function.source is not None:  # what another one holds, or computes, is not known
        state.guard_identity(function.source, real)
    if is_tensor_call(args, kwargs):
        return call_for_tensors(frame, function, args, kwargs, lambda: _changes(state))
    if any(made.function.value is real for made in state.last_calls):
        raise TraceBreakError("GB0009", "a function that keeps results of tensors of the call")
    given = [_key_part(frame, arg) for arg in args]
    named = {name: _key_part(frame, arg) for name, arg in kwargs.items()}
    key = cache_key(real, given, named)
    found = cached_result(real, key)
    _keep_room(state, real, key, is_new=found is ABSENT)
    if found is ABSENT:
        computed = _computed(frame, real, args, kwargs)
        state.note_first(FirstCall(real, tuple(given), named, computed.value))
        result: Variable = computed
    else:
        name = state.constants.name
        condition = f"{name(cached_result)}({name(real)}, {name(key)}) is {name(found)}"
        state.guard(None, condition, f"the cache of {real.__wrapped__.__name__} holds a result")
        held = Source(name(found), f"a result of {real.__wrapped__.__name__}")
        result = constant(found) if is_constant(found) else state.wrap(found, held)
    state.cached_functions.append(real)
    state.deferred.append((function, list(args), dict(kwargs)))
    return result


def _keep_room(state: TraceState, real: Any, key: object, *, is_new: bool) -> None:
    """A bounded cache has room for what several calls put there: it drops nothing meanwhile."""
    _, keys = state.world.cache_keys.setdefault(id(real), (real, {}))
    keys[key] = keys.get(key, False) or is_new
    size, new = real.cache_parameters()["maxsize"], sum(keys.values())
    if size is None or new == 0 or len(keys) == 1:
        return
    if real.cache_info().currsize + new > size:
        raise TraceBreakError("GB0002", "calls of a function whose cache is full")
    condition = f"{state.constants.name(real)}.cache_info().currsize <= {size - new}"
    state.guard(None, condition, f"the cache of {real.__wrapped__.__name__} has room")


def _computed(frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Known:
    """The result of a first call, if it is a constant that is computed without effects.

    It may log: it does so itself, after the graph, and only if the cache still lacks the result.
    """
    before, deferred = _effects(frame.state), frame.state.deferred
    count = len(deferred)
    shown = f"the first call of {real.__wrapped__.__name__}, which has a cache"
    try:
        result = frame.call(constant(real.__wrapped__), args, kwargs)
    except PythonError as error:
        raise TraceBreakError("GB0006", f"{shown}: {describe_exception(error.value)}") from error
    if not (isinstance(result, Known) and is_constant(result.value)):
        raise TraceBreakError("GB0002", f"{shown} and makes an object")
    if all(_is_cached(called) or _is_logged(called) for called, _, _ in deferred[count:]):
        del deferred[count:]  # it makes these calls itself
    if _effects(frame.state) != before:
        raise TraceBreakError("GB0002", f"{shown} and has effects")
    return result


def _is_cached(called: Variable) -> bool:
    return isinstance(called, Known) and isinstance(called.value, functools._lru_cache_wrapper)


def _is_logged(called: Variable) -> bool:
    return isinstance(called, Known) and called.value is log_at


def _effects(state: TraceState) -> object:
    """What the trace has done so far outside of itself, to be compared."""
    return _changes(state), len(state.graph.nodes)


def _changes(state: TraceState) -> object:
    """What the trace has done so far, but for the graph."""
    changed = {key: _content(value) for key, value in state.world.changed.items()}
    attributes = {key: dict(table) for key, table in state.world.attributes.items()}
    return changed, attributes, dict(state.world.context), len(state.deferred)


def _content(value: Variable) -> object:
    match value:
        case SequenceVariable(items=items):
            return list(map(id, items))
        case DictVariable():
            return len(value.writes)
        case SetVariable(items=items):
            return set(items)
        case CellVariable(content=content):
            return id(content)
    return object()


# Made in the trace.


def _cached(
    user_function: Callable[..., Any], maxsize: int | None, typed: bool, info: Any
) -> Callable[..., Any]:
    """`functools._lru_cache_wrapper` in Python; the least recently used entry is the first."""
    cache: dict[Any, Any] = {}
    hits = misses = 0

    def wrapper(*args: Any, **kwds: Any) -> Any:
        nonlocal hits, misses
        key: Any = (args, tuple(kwds.items()))
        if typed:
            key = (key, tuple(map(type, args)), tuple(map(type, kwds.values())))
        elif not kwds and len(args) == 1 and type(args[0]) in (int, str):
            key = args[0]
        if key in cache:
            hits += 1
            result = cache[key]
            if maxsize is not None:
                del cache[key]
                cache[key] = result
            return result
        misses += 1
        result = user_function(*args, **kwds)
        if maxsize is None or maxsize > 0:
            if maxsize is not None and key not in cache and len(cache) >= maxsize:
                del cache[next(iter(cache))]
            cache[key] = result
        return result

    def cache_info() -> Any:
        return info(hits, misses, maxsize, len(cache))

    def cache_clear() -> None:
        nonlocal hits, misses
        cache.clear()
        hits = misses = 0

    wrapper.cache_info = cache_info  # type: ignore[attr-defined]  # a function has attributes
    wrapper.cache_clear = cache_clear  # type: ignore[attr-defined]  # likewise
    return wrapper


WRAPPER_CODE: types.CodeType = next(
    constant
    for constant in _cached.__code__.co_consts
    if isinstance(constant, types.CodeType) and constant.co_name == "wrapper"
)
"""The code of functions with a cache that the trace has made."""


@builtin(functools._lru_cache_wrapper)
def lru_cache_wrapper(
    frame: Frame, user_function: Variable, maxsize: Variable, typed: Variable, info: Variable
) -> Variable:
    return frame.call(constant(_cached), [user_function, maxsize, typed, info], {})


def remake_cached(function: FunctionVariable) -> Remake:
    """A function with a cache that was not called yet, for the code after the graph."""
    cells = dict(zip(function.code.co_freevars, function.closure, strict=True))
    content = {name: cell.content for name, cell in cells.items()}
    cache, counts = content["cache"], (content["hits"], content["misses"])
    unused = all(isinstance(count, Known) and count.value == 0 for count in counts)
    if not unused or not isinstance(cache, DictVariable) or cache.items:
        raise TraceBreakError("GB0009", "a cache that was filled in the traced code")
    parts = [content[name] for name in ("user_function", "maxsize", "typed")]
    given = [part for part in parts if part is not None]
    info: Any = _INFO
    return Remake(functools._lru_cache_wrapper, [*given, constant(info)])


_INFO: Any = vars(functools)["_CacheInfo"]
