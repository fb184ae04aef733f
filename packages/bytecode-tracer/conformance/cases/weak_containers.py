"""Dicts and sets that hold their keys or values weakly."""

from __future__ import annotations

import weakref

from conformance.declare import case, t, with_x


class Thing:
    def __init__(self, value):
        self.value = value


KEPT = Thing(3)

OTHER = Thing(4)


def _keyed():
    table = weakref.WeakKeyDictionary({KEPT: 2})
    yield (t(2), table, KEPT)
    table[OTHER] = 5
    yield (t(2), table, KEPT)
    yield (t(2), table, OTHER)
    table.pop(KEPT, None)
    yield (t(2), table, KEPT)


@case(_keyed)
def weak_keys_asked(x, table, key):
    return len(table), key in table, table.get(key, 1) * x, 5 in table


@case(_keyed)
def weak_keys_gone_through(x, table, key):
    total = x
    for thing, factor in table.items():
        total = total + thing.value * factor
    return total, [thing is key for thing in table], sorted(table.values())


def _dying_keys():
    things = [Thing(1), Thing(2), Thing(3)]
    table = weakref.WeakKeyDictionary({thing: thing.value * 10 for thing in things})
    yield (t(2), table)
    del things[0]
    yield (t(2), table)
    things.clear()
    yield (t(2), table)


@case(_dying_keys)
def keys_that_die(x, table):
    return len(table), sum(table.values()), [thing.value for thing in table], x * len(table)


def _valued():
    table = weakref.WeakValueDictionary(a=KEPT)
    yield (t(2), table)
    table["b"] = OTHER
    yield (t(2), table)
    thing = Thing(9)
    table["a"] = thing
    yield (t(2), table)
    del thing
    yield (t(2), table)


@case(_valued)
def weak_values_asked(x, table):
    found = table.get("a")
    return "a" in table, "b" in table, len(table), x if found is None else x * found.value


@case(_valued)
def weak_values_gone_through(x, table):
    return [(key, thing.value) for key, thing in table.items()], list(table), x


@case(_valued)
def weak_value_missing(x, table):
    try:
        return table["a"].value * x
    except KeyError as error:
        return error.args


def _sets():
    things = weakref.WeakSet([KEPT])
    yield (t(2), things, KEPT)
    yield (t(2), things, OTHER)
    things.add(OTHER)
    yield (t(2), things, OTHER)
    extra = Thing(7)
    things.add(extra)
    yield (t(2), things, KEPT)
    del extra
    yield (t(2), things, KEPT)


@case(_sets)
def weak_set_asked(x, things, one):
    return one in things, len(things), bool(things), x


@case(_sets)
def weak_set_gone_through(x, things, one):
    total = x
    for thing in things:
        total = total + thing.value
    return total, sorted(thing.value for thing in things), one.value


@case(_sets)
def weak_set_changed(x, things, one):
    before = len(things)
    things.add(one)
    things.discard(KEPT)
    after = len(things)
    things.add(KEPT)
    return before, after, len(things), x


@case(_keyed)
def weak_keys_changed(x, table, key):
    table[key] = 7
    found = table[key]
    del table[key]
    return found, key in table, len(table), x


@case(with_x(1, 2))
def containers_of_the_program(x, n):
    things = [Thing(k) for k in range(n + 1)]
    by_key = weakref.WeakKeyDictionary({thing: thing.value for thing in things})
    by_name = weakref.WeakValueDictionary({str(thing.value): thing for thing in things})
    together = weakref.WeakSet(things)
    sizes = len(by_key), len(by_name), len(together)
    thing = things.pop()
    del thing
    return sizes, (len(by_key), len(by_name), len(together)), x


@case(lambda: [(t(2), {KEPT, OTHER}, Thing(1)), (t(2), {KEPT, OTHER}, KEPT),
               (t(2), {KEPT, OTHER}, OTHER), (t(2), {OTHER}, KEPT)])  # fmt: skip
def objects_in_a_set(x, things, one):
    return one in things, sum(thing.value for thing in things) * x


@case(_dying_keys)
def keys_dropped_by_the_program(x, table):
    return len(table), len(list(table)), x


def _held_in_a_list():
    for _ in range(2):
        things = [Thing(1), Thing(2)]
        yield (t(2), things, weakref.WeakKeyDictionary({thing: 1 for thing in things}))


@case(_held_in_a_list)
def weak_keys_dropped(x, things, table):
    before = len(table)
    things.pop()
    return before, len(table), x
