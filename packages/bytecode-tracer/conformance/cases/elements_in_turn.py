"""Elements asked for one by one: what comes between, and what stays of what fails midway."""

from __future__ import annotations

import collections
import operator

from conformance.declare import case, t


def numbers(count, log, bad=None):
    for number in range(count):
        log.append(("gives", number))
        if number == bad:
            raise ValueError("midway")
        yield number


def tried(log, *functions):
    for function in functions:
        try:
            log.append(function())
        except Exception as error:
            log.append((type(error).__name__, str(error)))


class Asked:
    def __init__(self, value, log):
        self.value = value
        self.log = log

    def __lt__(self, other):
        self.log.append(("lt", self.value, other.value))
        return self.value < other.value

    def __gt__(self, other):
        self.log.append(("gt", self.value, other.value))
        return self.value > other.value

    def __index__(self):
        self.log.append(("index", self.value))
        return self.value

    def __hash__(self):
        self.log.append(("hash", self.value))
        return self.value

    def __eq__(self, other):
        return self.value == getattr(other, "value", other)


def _containers():
    for _ in range(2):
        yield t(2), [1, 2], {"a": 1}, {1, 9}, collections.deque([0]), []


@case(_containers)
def lists_keep_what_came(x, items, table, elements, ends, log):
    same, own = items, [x]

    def add():
        nonlocal items
        items += numbers(4, log, 2)

    tried(log, lambda: items.extend(numbers(4, log, 2)), add)
    tried(log, lambda: own.extend(numbers(4, log, 2)))
    tried(log, lambda: operator.iadd(own, numbers(4, log, 2)))
    tried(log, lambda: operator.setitem(own, slice(0, 1), numbers(4, log, 2)))
    return x + 1, items, same is items, own


@case(_containers)
def lists_grow_while_asked(x, items, table, elements, ends, log):
    items += ((log.append(list(items)), each)[1] for each in numbers(3, log))
    items.extend((log.append(list(items)), each)[1] for each in numbers(3, log))
    return x + 1, items


@case(_containers)
def others_keep_what_came(x, items, table, elements, ends, log):
    tried(
        log,
        lambda: table.update((each, x) for each in numbers(4, log, 2)),
        lambda: table.update([(7, 1), (8,), (9, 3)]),
        lambda: ends.extend(numbers(4, log, 2)),
        lambda: ends.extendleft(numbers(4, log, 2)),
        lambda: elements.update(numbers(4, log, 2)),
        lambda: elements.update([5], [[]]),
        lambda: elements.difference_update(numbers(4, log, 2)),
    )
    return x + 1


@case(_containers)
def sets_computed_at_once_stay(x, items, table, elements, ends, log):
    tried(
        log,
        lambda: elements.intersection_update(numbers(4, log, 2)),
        lambda: elements.symmetric_difference_update(numbers(4, log, 2)),
    )
    return x + 1


@case(_containers)
def greatest_and_least(x, items, table, elements, ends, log):
    def rank(value):
        log.append(("rank", value))
        return -value

    tried(
        log,
        lambda: max(numbers(3, log), key=rank),
        lambda: min(numbers(5, log, 2), key=rank),
        lambda: max(Asked(each, log) for each in numbers(3, log)).value,
        lambda: min(Asked(each, log) for each in numbers(3, log)).value,
        lambda: max(items, key=lambda value: items.clear() or value),
        lambda: max(iter(())),
        lambda: min([], default=x),
    )
    return x + 1


@case(_containers)
def indices_are_asked_once(x, items, table, elements, ends, log):
    one, two = Asked(1, log), Asked(2, log)
    found = [0] * two, list(range(5))[Asked(0, log) : two : one], ends * two
    items.insert(one, 7)
    return x + 1, found, items.pop(one)


@case(_containers)
def hashes_with_effects(x, items, table, elements, ends, log):
    elements.add(Asked(5, log))
    table.setdefault(Asked(6, log), x)
    return x + 1, {Asked(each, log) for each in range(3)}


@case(_containers)
def empty_dicts_ask_no_hash(x, items, table, elements, ends, log):
    ordered = collections.OrderedDict()
    tried(
        log,
        lambda: {}.pop([]),
        lambda: {}.pop([], 5),
        lambda: {}.pop(Asked(1, log), 5),
        lambda: ordered.pop([]),
        lambda: ordered.move_to_end([]),
        lambda: ordered.popitem(last=False),
        lambda: table.popitem(False),
        lambda: {}.popitem(),
        lambda: hash(frozenset({1, 2, len(items)})),
        lambda: frozenset({1}).copy(1),
        lambda: operator.length_hint(items, "a"),
    )
    return x + 1
