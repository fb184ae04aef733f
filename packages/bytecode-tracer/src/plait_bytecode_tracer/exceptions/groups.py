"""Exception groups of the trace: split, matched and put together as CPython does in C."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import TypeAlias

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.objects import exception_field, new_exception
from plait_bytecode_tracer.exceptions.raising import exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.attributes import find_attribute, load_attribute, store_attribute
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.operations import truth
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    FunctionVariable,
    Known,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    Variable,
)

Test: TypeAlias = Callable[[Variable], bool]
Parts: TypeAlias = tuple[Variable | None, Variable | None]
"""What of an exception matches, and the rest; None where that is nothing."""
_METADATA = ("__traceback__", "__cause__", "__context__")


def _is_group(value: Variable) -> bool:
    return issubclass(exception_class(value), BaseExceptionGroup)


def _members(frame: Frame, group: Variable) -> list[Variable]:
    return list(elements(frame, load_attribute(frame, group, "exceptions")))


def _group(members: Iterable[Variable], kind: type, held: type) -> Variable:
    """A group that `except*` makes; `args` show whether it was given a tuple or a list."""
    return new_exception(kind, [constant(""), SequenceVariable(list(members), held)], {})


# Methods.


def split(frame: Frame, group: Variable, matcher: Variable) -> Variable:
    """`group.split(matcher)`."""
    found = _split(frame, group, _test(frame, matcher))
    return SequenceVariable([constant(None) if part is None else part for part in found], tuple)


def subgroup(frame: Frame, group: Variable, matcher: Variable) -> Variable:
    """`group.subgroup(matcher)`."""
    found = _split(frame, group, _test(frame, matcher), with_rest=False)[0]
    return constant(None) if found is None else found


def derive(frame: Frame, group: Variable, members: Variable) -> Variable:
    """`BaseExceptionGroup.derive(group, members)`."""
    message = load_attribute(frame, group, "message")
    return new_exception(BaseExceptionGroup, [message, members], {})


def _test(frame: Frame, matcher: Variable) -> Test:
    """What tells whether an exception is looked for."""
    if isinstance(matcher, Known | SequenceVariable):
        wanted = plain_value(matcher)
        kinds = wanted if type(wanted) is tuple else (wanted,)
        if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            return lambda value: issubclass(exception_class(value), kinds)
    is_function = isinstance(matcher, FunctionVariable) or (
        isinstance(matcher, Known) and isinstance(matcher.value, types.FunctionType)
    )
    if sys.version_info >= (3, 13):
        is_function |= isinstance(matcher, BoundVariable | PartialVariable) or (
            isinstance(matcher, Known)
            and callable(matcher.value)
            and not inspect.isclass(matcher.value)
        )
    if is_function:
        return lambda value: truth(frame, frame.call(matcher, [value], {}))
    text = "a function, exception type or tuple of exception types"
    if sys.version_info >= (3, 13):
        text = "an exception type, a tuple of exception types, or a callable (other than a class)"
    return fails(TypeError, f"expected {text}")


def _split(frame: Frame, value: Variable, test: Test, *, with_rest: bool = True) -> Parts:
    if test(value):
        return value, None
    if not _is_group(value):
        return None, value if with_rest else None
    found: list[Variable] = []
    rest: list[Variable] = []
    for member in _members(frame, value):
        inner, others = _split(frame, member, test, with_rest=with_rest)
        found += [] if inner is None else [inner]
        rest += [] if others is None else [others]
    return _subset(frame, value, found), _subset(frame, value, rest)


def _subset(frame: Frame, group: Variable, members: list[Variable]) -> Variable | None:
    """A group of some of a group's exceptions, with its cause, context, traceback and notes."""
    if not members:
        return None
    method = load_attribute(frame, group, "derive")
    made = frame.call(method, [SequenceVariable(members, list)], {})
    if not issubclass(type_of(made), BaseExceptionGroup):
        fails(TypeError, "derive must return an instance of BaseExceptionGroup")
    for name in _METADATA:
        store_attribute(frame, made, name, load_attribute(frame, group, name))
    notes = _notes(frame, group)
    if isinstance(notes, SequenceVariable):
        store_attribute(frame, made, "__notes__", SequenceVariable(list(notes.items), list))
    elif notes is not None:
        raise TraceBreakError("GB0009", "notes of an exception that are no list")
    return made


def _notes(frame: Frame, value: Variable) -> Variable | None:
    return find_attribute(frame, value, "__notes__")


# `except*`.


def match_group(frame: Frame, value: Variable, wanted: Variable) -> tuple[Variable, Variable]:
    """What an `except*` clause takes of an exception, and what it leaves."""
    nothing = constant(None)
    if isinstance(value, Known) and value.value is None:
        return nothing, nothing
    kinds = plain_value(wanted)
    if issubclass(exception_class(value), kinds):
        if _is_group(value):
            return value, nothing
        kind = ExceptionGroup if issubclass(exception_class(value), Exception) else None
        made = _group([value], kind or BaseExceptionGroup, tuple)
        return made, nothing
    if not _is_group(value):
        return nothing, value
    parts = frame.call(load_attribute(frame, value, "split"), [wanted], {})
    if type_of(parts) is not tuple:
        raise TraceBreakError("GB0006", "split() returns no tuple")
    items = list(elements(frame, parts))
    if len(items) < 2:
        raise TraceBreakError("GB0006", "split() returns a tuple of less than two")
    match, rest = items[:2]
    is_none = isinstance(match, Known) and match.value is None
    return (nothing, value) if is_none else (match, rest)


def group_to_raise(frame: Frame, original: Variable, results: Variable) -> Variable:
    """What is raised after the `except*` clauses: what they raised, and what none took."""
    items = [i for i in elements(frame, results) if not (isinstance(i, Known) and i.value is None)]
    if not items:
        return constant(None)
    if not _is_group(original):
        return items[0]
    raised = [item for item in items if not _same_metadata(frame, item, original)]
    again = [item for item in items if _same_metadata(frame, item, original)]
    leaves = [leaf for item in again for leaf in _leaves(frame, item)]
    left = _split(frame, original, lambda v: any(v is leaf for leaf in leaves), with_rest=False)[0]
    if not raised:
        return constant(None) if left is None else left
    if left is not None:
        raised.append(left)
    if len(raised) == 1:
        return raised[0]
    return _group(raised, BaseExceptionGroup, list)


def _leaves(frame: Frame, value: Variable) -> list[Variable]:
    if not _is_group(value):
        return [value]
    return [leaf for member in _members(frame, value) for leaf in _leaves(frame, member)]


def _same_metadata(frame: Frame, one: Variable, other: Variable) -> bool:
    """Whether an exception is a part of the original rather than one that a clause raised."""
    if not (_is_group(one) and _is_group(other)):
        return False
    if not (isinstance(one, ObjectVariable) and isinstance(other, ObjectVariable)):
        return one is other
    for name in _METADATA:
        first, second = exception_field(one, name), exception_field(other, name)
        both_none = all(isinstance(v, Known) and v.value is None for v in (first, second))
        if first is not second and not both_none:
            return False
    return True
