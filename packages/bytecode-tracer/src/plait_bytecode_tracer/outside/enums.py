"""Enumerations that the call made before a break: by what their members are called, and hold."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.guards import same_constant
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import table_of
from plait_bytecode_tracer.values.plain import VALUE_BASES, plain_of
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

TABLES = frozenset(
    {
        *("_member_names_", "_member_map_", "_value2member_map_", "_unhashable_values_"),
        *("_unhashable_values_map_", "_hashable_values_"),
    }
)
"""What an enumeration keeps of its members, which `members` tells."""
_OF_MEMBERS = ("__objclass__", "_inverted_")
"""What a member knows of its class, and what operators keep for the next time."""


def is_told(cls: enum.EnumMeta) -> bool:
    """Whether constants tell all of an enumeration's members."""
    unhashable = vars(cls).get("_unhashable_values_")
    return type(cls) is enum.EnumMeta and not unhashable and is_constant(members(cls))


def members(cls: enum.EnumMeta) -> tuple[Any, ...]:
    """All that is to be known of the members of an enumeration, and of their other names."""
    table = vars(cls)
    named = table["_member_map_"]
    held = tuple((name, value._name_) for name, value in table.items() if type(value) is cls)
    values = table["_value2member_map_"].items()
    return (
        (held, tuple(table["_member_names_"])),
        tuple((name, member._name_) for name, member in named.items()),
        tuple((value, member._name_) for value, member in values if member._name_ in named),
        tuple(tuple(_parts(named[name])) for name in table["_member_names_"]),
    )


def _parts(member: enum.Enum) -> Iterator[tuple[str, Any]]:
    for name, value in table_of(member).items():
        if name not in _OF_MEMBERS:
            yield name, value
    for base in VALUE_BASES:
        if isinstance(member, base):
            yield base.__name__, plain_of(member, base)


def has_members(cls: enum.EnumMeta, expected: tuple[Any, ...]) -> bool:
    """Whether an enumeration has the same members as another."""
    return same_constant(members(cls), expected)


def guard_members(state: TraceState, cls: enum.EnumMeta, source: Source) -> None:
    """An enumeration of a later call has the same members."""
    check, expected = map(state.constants.name, (has_members, members(cls)))
    text = f"{source.text} has the members that it did"
    state.guard(source, f"{check}({{}}, {expected})", text)


def wrap_member(state: TraceState, value: enum.Enum, source: Source, owner: Source) -> Known:
    """A member of an enumeration that the call made, whose class `owner` gives."""
    state.wrap(type(value), owner)
    state.guard_constant(value._name_, source.attribute("_name_"))
    if value._name_ not in type(value).__members__:  # of several flags
        state.guard_constant(value._value_, source.attribute("_value_"))
    return Known(value, source)


def member_code(state: TraceState, value: object) -> str | None:
    """Python for a member of an enumeration that the call made; None for all else."""
    owner = state.made.adopted.get(id(type(value)))
    if owner is None or owner.source is None or not isinstance(value, enum.Enum):
        return None
    is_named = value._name_ in type(value).__members__
    rest = f"[{value._name_!r}]" if is_named else f"({value._value_!r})"
    return f"{owner.source.code}{rest}"
