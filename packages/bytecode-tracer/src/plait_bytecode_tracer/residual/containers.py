"""Containers made anew after a graph."""

from __future__ import annotations

import collections
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.values.keys import HashedKey, refuse_effects
from plait_bytecode_tracer.values.open_lists import OpenList, open_of
from plait_bytecode_tracer.values.set_order import OfSet, arranged, is_reproduced
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    ObjectKey,
    SequenceVariable,
    SetVariable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder


def new_sequence(rebuilder: Rebuilder, variable: SequenceVariable) -> str:
    """A list, tuple or named tuple; a list is filled when what it holds can be made."""
    if variable.source is not None:
        return rebuilder.writer.value(variable.source)
    kind = variable.kind
    if kind is list:
        found = open_of(variable.items)
        name = rebuilder.assign("[]" if found is None else f"[*{_between(rebuilder, found)}]")
        rebuilder.names[id(variable)] = name
        rebuilder.made.fill(lambda: _extend(rebuilder, name, variable))
        return name
    found = open_of(variable.items)
    if found is not None:
        before, behind = (list(map(rebuilder.value, end)) for end in found.ends())
        listed = ", ".join([*before, f"*{_between(rebuilder, found)}", *behind])
        return rebuilder.assign(f"({listed},)")
    items = ", ".join(rebuilder.value(item) for item in variable.items)
    if kind is tuple:
        return rebuilder.assign(f"({items}{',' if variable.items else ''})")
    made = rebuilder.real(kind)
    held = f"({items}{',' if variable.items else ''})"
    if hasattr(kind, "_fields"):  # what the class does in `__new__` and `__init__` was traced
        return rebuilder.assign(f"{rebuilder.state.constants.name(tuple.__new__)}({made}, {held})")
    return rebuilder.assign(f"{made}({held})")


def _between(rebuilder: Rebuilder, items: OpenList) -> str:
    """What the caller's list holds between the ends, before anything is done to it."""
    held = rebuilder.writer.value(items.whole.source)
    first, last = items.taken()
    return f"{held}[{first}:len({held}) - {last}]"


def _extend(rebuilder: Rebuilder, name: str, variable: SequenceVariable) -> None:
    found = open_of(variable.items)
    if found is not None:
        before, behind = (", ".join(map(rebuilder.value, end)) for end in found.ends())
        rebuilder.lines.append(f"{name}[0:0] = [{before}]; {name}.extend([{behind}])")
        return
    rebuilder.lines.append(f"{name}.extend([{', '.join(map(rebuilder.value, variable.items))}])")


def new_dict(rebuilder: Rebuilder, variable: DictVariable) -> str:
    """A dict, filled when what it holds can be made."""
    if variable.source is not None:
        return rebuilder.writer.value(variable.source)
    constants = rebuilder.state.constants
    if variable.kind is collections.defaultdict and variable.factory is not None:
        made = f"{constants.name(variable.kind)}({rebuilder.value(variable.factory)})"
    else:
        made = "{}" if variable.kind is dict else f"{constants.name(variable.kind)}()"
    name = rebuilder.assign(made)
    rebuilder.names[id(variable)] = name
    rebuilder.unfinished.add(id(variable))
    rebuilder.made.fill(lambda: _fill_dict(rebuilder, name, variable))
    return name


def _fill_dict(rebuilder: Rebuilder, name: str, variable: DictVariable) -> None:
    for attribute, value in variable.attributes.items():
        rebuilder.lines.append(f"{name}.{attribute} = {rebuilder.value(value)}")
    for key, item in variable.items.items():
        rebuilder.lines.append(f"{name}[{key_of(rebuilder, key)}] = {rebuilder.value(item)}")
    rebuilder.unfinished.discard(id(variable))


def new_set(rebuilder: Rebuilder, variable: SetVariable) -> str:
    """A set in the order that its elements have in eager."""
    made, writes = variable.kind.__name__, variable.writes
    if writes is None or is_reproduced(variable.items):
        return rebuilder.assign(f"{made}({elements_of_set(rebuilder, variable.items)})")
    name = rebuilder.assign(f"{made}({_set_operand(rebuilder, variable.initial)})")
    rebuilder.lines += writes_to_set(rebuilder, writes, name)
    return name


def elements_of_set(rebuilder: Rebuilder, items: Collection[Any]) -> str:
    """The elements of a set."""
    depends = rebuilder.state.made.depends
    if any(isinstance(item, ObjectKey) or depends(item) for item in items):
        return f"[{', '.join(key_of(rebuilder, item) for item in items)}]"
    return rebuilder.state.constants.name(arranged(items))


def writes_to_set(
    rebuilder: Rebuilder, writes: list[tuple[str, tuple[Any, ...]]], target: str
) -> list[str]:
    """The calls that repeat what was done to a set."""
    lines = []
    for method, operands in writes:
        given = "".join(f", {_set_operand(rebuilder, operand)}" for operand in operands)
        lines.append(f"{rebuilder.state.constants.name(getattr(set, method))}({target}{given})")
    return lines


def _set_operand(rebuilder: Rebuilder, operand: Any) -> str:
    """An element, or elements, that a method of a set was given."""
    if type(operand) is dict:
        return f"dict.fromkeys([{', '.join([key_of(rebuilder, each) for each in operand])}])"
    if type(operand) is list:
        return f"[{', '.join([key_of(rebuilder, each) for each in operand])}]"
    if isinstance(operand, OfSet):
        held = operand.collection
        return f"set({_set_operand(rebuilder, list(held) if type(held) is tuple else held)})"
    if type(operand) is frozenset:
        depends = rebuilder.state.made.depends
        if any(isinstance(key, ObjectKey) or depends(key) for key in operand):
            return elements_of_set(rebuilder, operand)
        return rebuilder.state.constants.name(operand)
    return key_of(rebuilder, operand)


def key_of(rebuilder: Rebuilder, key: Any) -> str:
    """A key of a dict."""
    if isinstance(key, HashedKey):
        refuse_effects(key)
    if isinstance(key, ObjectKey):
        return rebuilder.value(key.variable)
    return rebuilder.real(key)
