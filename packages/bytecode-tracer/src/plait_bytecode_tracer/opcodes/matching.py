"""Patterns of `match`, as `Python/ceval.c` tests them."""

from __future__ import annotations

from dis import Instruction

from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.operations import truth
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.rules.objects import len_
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.keys import constant_key
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    IteratorVariable,
    Known,
    SequenceVariable,
    Variable,
)

_SEQUENCE = 1 << 5
_MAPPING = 1 << 6
_HEAP = 1 << 9
_MATCH_SELF = 1 << 22
"""Flags of types, as CPython's `object.h` numbers them."""
_flags = type.__dict__["__flags__"].__get__
_ABSENT = Known(object())
"""What a look-up gives for a key or attribute that is not there."""


def pattern_flags(cls: type) -> int:
    """Whether instances of a class match patterns of sequences, of mappings, or neither."""
    flags: int = _flags(cls) & (_SEQUENCE | _MAPPING)
    return flags


def _matches(frame: Frame, subject: Variable, flag: int) -> Variable:
    if isinstance(subject, IteratorVariable):
        return constant(False)
    cls = type_of(subject)
    found = pattern_flags(cls)
    if _flags(cls) & _HEAP:  # an abstract class can take it in later
        state = frame.state
        reader = state.constants.name(pattern_flags)
        source = state.constants.source(cls, cls.__qualname__)
        what = {0: "no", _SEQUENCE: "a sequence", _MAPPING: "a mapping"}.get(found, "any")
        state.guard(source, f"{reader}({{}}) == {found}", f"{cls.__qualname__} is {what} pattern's")
    return constant(bool(found & flag))


@opcode("MATCH_SEQUENCE")
def match_sequence(frame: Frame, instruction: Instruction) -> None:
    frame.push(_matches(frame, frame.stack[-1], _SEQUENCE))


@opcode("MATCH_MAPPING")
def match_mapping(frame: Frame, instruction: Instruction) -> None:
    frame.push(_matches(frame, frame.stack[-1], _MAPPING))


@opcode("GET_LEN")
def get_len(frame: Frame, instruction: Instruction) -> None:
    frame.push(len_(frame, frame.stack[-1]))


@opcode("MATCH_KEYS")
def match_keys(frame: Frame, instruction: Instruction) -> None:
    """The values of a mapping under some keys as a tuple; None where one is not there."""
    keys, subject = list(elements(frame, frame.stack[-1])), frame.stack[-2]
    seen = set()
    values: list[Variable] = []
    for key in keys:
        plain = constant_key(frame, key)
        if plain in seen:
            fails(ValueError, f"mapping pattern checks duplicate key ({plain!r})")
        seen.add(plain)
        value = _look_up(frame, subject, key)
        if value is _ABSENT:
            frame.push(constant(None))
            return
        values.append(value)
    frame.push(SequenceVariable(values, tuple))


def _look_up(frame: Frame, subject: Variable, key: Variable) -> Variable:
    if isinstance(subject, DictVariable):
        return subject.items.get(constant_key(frame, key), _ABSENT)
    return frame.call(load_attribute(frame, subject, "get"), [key, _ABSENT], {})


@opcode("MATCH_CLASS")
def match_class(frame: Frame, instruction: Instruction) -> None:
    """The attributes that a class pattern asks for as a tuple; None where it does not match."""
    names, cls, subject = frame.pop(), frame.pop(), frame.pop()
    if isinstance(cls, Known) and not isinstance(cls.value, type):
        fails(TypeError, f"called match pattern must be a {'class' if frame.is_312 else 'type'}")
    if not truth(frame, frame.call(constant(isinstance), [subject, cls], {})):
        frame.push(constant(None))
        return
    wanted: list[Variable] = []
    found: list[Variable] = []
    count = instruction.arg or 0
    if count:
        positional = _positional(frame, cls, count)
        if positional is None:
            found.append(subject)
        else:
            wanted += positional
    wanted += elements(frame, names)
    seen = set()
    for name in wanted:
        plain = name.value if isinstance(name, Known) else None
        if type(plain) is not str:
            kind = type_of(name).__name__
            fails(TypeError, f"__match_args__ elements must be strings (got {kind})")
        if plain in seen:
            text = f"{_name(cls)}() got multiple sub-patterns for attribute {plain!r}"
            fails(TypeError, text)
        seen.add(plain)
        value = frame.call(constant(getattr), [subject, name, _ABSENT], {})
        if value is _ABSENT:
            frame.push(constant(None))
            return
        found.append(value)
    frame.push(SequenceVariable(found, tuple))


def _positional(frame: Frame, cls: Variable, count: int) -> list[Variable] | None:
    """The names of a class's positional sub-patterns; None for the subject itself."""
    is_self = False
    names: list[Variable] = []
    try:
        given = load_attribute(frame, cls, "__match_args__")
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError):
            raise
        is_self = isinstance(cls, Known) and bool(_flags(cls.value) & _MATCH_SELF)
    else:
        if type_of(given) is not tuple:
            kind = type_of(given).__name__
            fails(TypeError, f"{_name(cls)}.__match_args__ must be a tuple (got {kind})")
        names = list(elements(frame, given))
    allowed = 1 if is_self else len(names)
    if allowed < count:
        plural = "" if allowed == 1 else "s"
        text = f"accepts {allowed} positional sub-pattern{plural} ({count} given)"
        fails(TypeError, f"{_name(cls)}() {text}")
    return None if is_self else names[:count]


def _name(cls: Variable) -> str:
    """What C calls a class."""
    if not isinstance(cls, Known):
        return str(getattr(cls, "name", "class"))
    real: type = cls.value
    if _flags(real) & _HEAP or real.__module__ == "builtins":
        return real.__name__
    return f"{real.__module__}.{real.__qualname__}"
