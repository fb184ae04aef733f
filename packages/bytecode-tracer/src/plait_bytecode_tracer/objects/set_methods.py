"""Methods of sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.arity import refuse_method
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import changed
from plait_bytecode_tracer.values.keys import (
    constant_key,
    keys_of,
    searched_key,
    set_operand,
)
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.set_order import InOrder, Taken, note_change, order_unknown
from plait_bytecode_tracer.values.variables import SetVariable, Variable, key_variable


def set_method(frame: Frame, owner: SetVariable, name: str, args: list[Variable]) -> Variable:
    """A call of a method of a set, which is noted where it changes one of the caller's."""
    if name == "copy" and owner.kind is frozenset:
        return refuse_method(frozenset, name, args, {}) if args else owner
    if not is_defined(owner.kind, name):
        fails(AttributeError, f"{owner.kind.__name__!r} object has no attribute {name!r}")
    if name.startswith("__"):
        raise TraceBreakError("GB0002", f"the method {name} of a {owner.kind.__name__}")
    operands = [_set_operand(frame, name, arg) for arg in args]
    if name not in _ORDERLESS and any(isinstance(s, InOrder) for s in (owner.items, *operands)):
        raise order_unknown()
    result, done = None, False
    try:
        result = getattr(owner.items, name)(*operands)
        done = True
    except KeyError as error:
        if name == "remove":
            fails(KeyError, args[0])
        raise python_error(error) from error
    except TypeError as error:
        raise python_error(error) from error
    finally:  # what was taken before an exception stays
        partly = any(isinstance(operand, Taken) and operand.taken for operand in operands)
        if name in _SET_CHANGES and (done or (partly and name in _STEP_BY_STEP)):
            note_change(owner, "discard" if name == "pop" else name, operands or [result])
            changed(frame, owner)
    if isinstance(result, set):
        return SetVariable(result, kind=owner.kind)
    return key_variable(result) if name == "pop" else constant(result)


_SET_CHANGES = frozenset(
    {
        *("add", "discard", "remove", "update", "pop", "clear", "difference_update"),
        *("intersection_update", "symmetric_difference_update"),
    }
)
_STEP_BY_STEP = frozenset({"update", "difference_update"})
"""Methods that change a set with each element that they are given."""
_ORDERLESS = frozenset(
    {
        *("add", "discard", "remove", "clear", "difference_update"),
        *("issubset", "issuperset", "isdisjoint"),
    }
)
"""Methods of which the order of a set decides nothing."""


def _set_operand(frame: Frame, name: str, value: Variable) -> Any:
    if name in ("discard", "remove"):
        return searched_key(frame, value)
    if name == "add":
        return constant_key(frame, value)
    is_iterated = name == "isdisjoint" and not isinstance(value, SetVariable)
    found = keys_of(frame, value) if is_iterated else set_operand(frame, value)
    return Taken(found) if isinstance(found, Iterator) else found
