"""Methods of dicts and their views."""

from __future__ import annotations

import collections
from collections.abc import Callable

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.arity import refuse_method
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.container_operators import SPECIAL_METHODS
from plait_bytecode_tracer.objects.containers import (
    dict_delete,
    dict_set,
    extend,
    move_to_front,
    plain_value,
)
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.list_methods import clear_container, copy_container
from plait_bytecode_tracer.rules.registry import fits
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.keys import constant_key
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    Variable,
    ViewVariable,
    key_variable,
)


def _get(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    name = constant_key(frame, key)
    return owner.items.get(name) or default or constant(None)


def _keys(frame: Frame, owner: DictVariable) -> Variable:
    return ViewVariable(owner, "keys")


def _values(frame: Frame, owner: DictVariable) -> Variable:
    return ViewVariable(owner, "values")


def _items(frame: Frame, owner: DictVariable) -> Variable:
    return ViewVariable(owner, "items")


_SETS = (set, frozenset)


def view_method(frame: Frame, owner: ViewVariable, name: str, args: list[Variable]) -> Variable:
    """A method of a view of a dict."""
    if name in SPECIAL_METHODS:
        if not fits(SPECIAL_METHODS[name], frame, owner, *args):
            refuse_method(owner.kind, name, args, {})
        return SPECIAL_METHODS[name](frame, owner, *args)
    if name == "isdisjoint" and owner.name == "keys":
        if isinstance(args[0], ObjectVariable | Known) and issubclass(type_of(args[0]), _SETS):
            raise TraceBreakError("GB0002", "isdisjoint(), which may ask a set of the user's class")
        other = {constant_key(frame, item) for item in elements(frame, args[0])}
        return constant(other.isdisjoint(owner.owner.items))
    raise TraceBreakError("GB0002", f"the method {name} of a view of a dict")


def _pop_dict(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    if not issubclass(owner.kind, collections.OrderedDict) and not owner.items:
        return default or fails(KeyError, key)  # an empty one does not ask for the hash
    name = constant_key(frame, key)
    found = owner.items.pop(name, None) if owner.original is None else None
    if found is None and owner.original is not None and name in owner.items:
        found = dict_delete(frame, owner, name)
    if found is None and default is None:
        fails(KeyError, key)
    return found or default or constant(None)


def _pop_item(frame: Frame, owner: DictVariable, last: Variable | None = None) -> Variable:
    is_ordered = issubclass(owner.kind, collections.OrderedDict)
    if last is not None and not is_ordered:
        fails(TypeError, "dict.popitem() takes no arguments (1 given)")
    from_end = last is None or bool(plain_value(last))
    keys = list(owner.items)
    if not keys:
        fails(KeyError, "dictionary is empty" if is_ordered else "popitem(): dictionary is empty")
    key = keys[-1 if from_end else 0]
    return SequenceVariable([key_variable(key), dict_delete(frame, owner, key)], tuple)


def _set_default(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    name = constant_key(frame, key)
    if owner.original is None:  # asks each key once
        return owner.items.setdefault(name, default or constant(None))
    if name not in owner.items:
        dict_set(frame, owner, name, default or constant(None))
    return owner.items[name]


def _update(frame: Frame, owner: DictVariable, /, *others: Variable, **items: Variable) -> Variable:
    if len(others) > 1:
        refuse_method(owner.kind, "update", [*others], items)
    for other in others:
        extend(frame, owner, other)
    for name, value in items.items():
        dict_set(frame, owner, name, value)
    return constant(None)


def _move_to_end(
    frame: Frame, owner: DictVariable, key: Variable, last: Variable | None = None
) -> Variable:
    if not owner.items:
        fails(KeyError, key)
    name = constant_key(frame, key)
    if name not in owner.items:
        fails(KeyError, key)
    if last is not None and not plain_value(last):
        move_to_front(frame, owner, name)
        return constant(None)
    dict_set(frame, owner, name, dict_delete(frame, owner, name))
    return constant(None)


DICT_METHODS: dict[str, Callable[..., Variable]] = {
    "get": _get,
    "keys": _keys,
    "values": _values,
    "items": _items,
    "pop": _pop_dict,
    "setdefault": _set_default,
    "update": _update,
    "popitem": _pop_item,
    "move_to_end": _move_to_end,
    "clear": clear_container,
    "copy": copy_container,
}
