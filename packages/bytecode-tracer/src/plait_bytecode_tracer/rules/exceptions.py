"""Methods of exceptions, and what tells which one is being handled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.groups import derive, split, subgroup
from plait_bytecode_tracer.exceptions.raising import fails, native_class
from plait_bytecode_tracer.exceptions.tracebacks import handled_exception
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.attributes import find_attribute, load_attribute, store_attribute
from plait_bytecode_tracer.objects.containers import changed, plain_value
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import (
    ExceptionStorage,
    ObjectVariable,
    SequenceVariable,
    Variable,
)


@builtin(sys.exception)
def exception(frame: Frame) -> Variable:
    found = handled_exception(frame.state)
    return constant(None) if found is None else found


@builtin(sys.exc_info)
def exc_info(frame: Frame) -> Variable:
    found = handled_exception(frame.state)
    if found is None:
        return SequenceVariable([constant(None)] * 3, tuple)
    traceback = load_attribute(frame, found, "__traceback__")
    return SequenceVariable([constant(type_of(found)), found, traceback], tuple)


@builtin(BaseException.with_traceback)
def with_traceback(frame: Frame, owner: Variable, traceback: Variable) -> Variable:
    store_attribute(frame, owner, "__traceback__", traceback)
    return owner


@builtin(BaseException.add_note)
def add_note(frame: Frame, owner: Variable, note: Variable) -> Variable:
    if not issubclass(type_of(note), str):
        fails(TypeError, f"note must be a str, not {type_of(note).__name__!r}")
    notes = find_attribute(frame, owner, "__notes__")
    if notes is None:
        notes = SequenceVariable([], list)
        store_attribute(frame, owner, "__notes__", notes)
    if not isinstance(notes, SequenceVariable) or notes.kind is not list:
        fails(TypeError, "Cannot add note: __notes__ is not a list")
    notes.items.append(note)
    changed(frame, notes)
    return constant(None)


builtin(BaseExceptionGroup.split)(split)
builtin(BaseExceptionGroup.subgroup)(subgroup)
builtin(BaseExceptionGroup.derive)(derive)


@builtin(BaseException.__str__)
def str_(frame: Frame, owner: Variable) -> Variable:
    items = _storage(owner).items
    if not items:
        return constant("")
    if len(items) == 1:
        return _text(frame, str, items[0])
    return _text(frame, repr, SequenceVariable(list(items), tuple))


@builtin(BaseException.__repr__)
def repr_(frame: Frame, owner: Variable) -> Variable:
    items, name = _storage(owner).items, type_of(owner).__name__
    if len(items) == 1:
        return constant(f"{name}({plain_value(_text(frame, repr, items[0]))})")
    shown = _text(frame, repr, SequenceVariable(list(items), tuple))
    return constant(f"{name}{plain_value(shown)}")


@builtin(KeyError.__str__)
def key_error_str(frame: Frame, owner: Variable) -> Variable:
    items = _storage(owner).items
    return _text(frame, repr, items[0]) if len(items) == 1 else str_(frame, owner)


@builtin(BaseExceptionGroup.__str__)
def group_str(frame: Frame, owner: Variable) -> Variable:
    message = plain_value(load_attribute(frame, owner, "message"))
    members = load_attribute(frame, owner, "exceptions")
    count = len(members.items) if isinstance(members, SequenceVariable) else 0
    return constant(f"{message} ({count} sub-exception{'' if count == 1 else 's'})")


def _of_fields(method: Any) -> Callable[..., Variable]:
    """A text that C makes of an exception's fields, all of which must be known."""

    def rule(frame: Frame, owner: Variable) -> Variable:
        storage = _storage(owner)
        native = native_class(type_of(owner))
        twin = native.__new__(native, *[plain_value(item) for item in storage.items])
        for name, value in storage.fields.items():
            if not name.startswith("__") and name != "args":
                setattr(twin, name, plain_value(value))
        return constant(method(twin))

    return rule


for _cls in (OSError, ImportError, SyntaxError, UnicodeEncodeError, UnicodeDecodeError):
    builtin(_cls.__str__)(_of_fields(_cls.__str__))
builtin(UnicodeTranslateError.__str__)(_of_fields(UnicodeTranslateError.__str__))
for _error in (AttributeError, NameError, StopIteration, SystemExit):
    if "__str__" in _error.__dict__:  # another slot for the same function in C
        builtin(_error.__str__)(str_)


def _storage(owner: Variable) -> ExceptionStorage:
    if isinstance(owner, ObjectVariable) and isinstance(owner.base, ExceptionStorage):
        return owner.base
    raise TraceBreakError("GB0002", "the text of an exception that the caller holds")


def _text(frame: Frame, function: Any, value: Variable) -> Variable:
    return frame.call(constant(function), [value], {})
