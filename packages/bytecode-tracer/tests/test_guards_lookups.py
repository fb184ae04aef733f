"""What native checks look up themselves, of what is Python text in a tree."""

from __future__ import annotations

import pytest

from plait_bytecode_tracer.guards import Guard, GuardTree, Kind, guard_tree
from plait_bytecode_tracer.guards.native.lookups import (
    AttributeIs,
    Contains,
    Holds,
    Lookups,
    kept_for,
)
from plait_bytecode_tracer.values.sources import Constants, Source, argument

CONSTANTS = Constants()
MAX = CONSTANTS.name(max)
OWNER, OTHER = argument(0, "owner"), argument(1, "other")
KEYS, VALUES = OWNER.entry("keys"), OWNER.entry("values")
KEY, LATE = KEYS.element(0, "0"), OWNER.entry("late")
FOREIGN = OTHER.entry("key")


def under(table: Source, key: Source) -> Source:
    return Source(f"{table.code}[{key.code}]", "", table)


def condition(source: Source | None, text: str) -> Guard:
    return Guard(source, Kind.PYTHON, text, "", "")


def lookups(
    *guards: Guard, reads: tuple[Source, ...] = (KEY, FOREIGN)
) -> tuple[GuardTree, Lookups]:
    read = [Guard(source, Kind.EQUAL, 1, "", "") for source in reads]
    tree = guard_tree([*read, *guards, Guard(LATE, Kind.EQUAL, 1, "", "")], ())
    return tree, Lookups.of(tree, CONSTANTS.objects)


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        (VALUES, f"{KEY.code} in {{}}", Contains(KEY, True)),
        (VALUES, f"{KEY.code} not in {{}}", Contains(KEY, False)),
        (KEY, "{}.is_leaf is True", AttributeIs("is_leaf", True)),
        (KEY, "{}.grad_fn is None", AttributeIs("grad_fn", None)),
        (None, f"{MAX}({KEY.code}, {FOREIGN.code})", Holds(max, (KEY, FOREIGN))),
        # Not known by then, or not known at all, or something else:
        (VALUES, f"{LATE.code} in {{}}", None),
        (VALUES, f"{FOREIGN.code} in {{}}", None),
        (VALUES, f"{KEY.code}.real in {{}}", None),
        (VALUES, f"{KEY.code} in {{}}.values()", None),
        (KEY, "{}.is_leaf is True or True", None),
        (KEY, "{}.grad is other", None),
        (None, f"{MAX}({KEY.code}, 2)", None),
        (None, f"{MAX}({KEY.code}) == 2", None),
    ],
)
def test_conditions_that_need_no_python(source, text, expected):
    guard = condition(source, text)
    _, found = lookups(guard)
    assert found.condition(guard) == expected


def test_a_key_that_is_read_before_is_looked_up():
    place = under(VALUES, KEY)
    tree, found = lookups(reads=(KEY, FOREIGN, place))
    node = next(node for node in tree.nodes() if node.source is place)
    assert found.key(node) == KEY
    assert list(kept_for(tree, found)) == [KEY]


@pytest.mark.parametrize("key", [LATE, FOREIGN])
def test_a_key_that_may_be_read_later_is_not(key):
    place = under(VALUES, key)
    tree, found = lookups(reads=(KEY, FOREIGN, place))
    node = next(node for node in tree.nodes() if node.source is place)
    assert found.key(node) is None
