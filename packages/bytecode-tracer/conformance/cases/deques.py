"""Deques: what is done in place, iterators over what changes, and refused arguments."""

from __future__ import annotations

import collections

from conformance.declare import case, scenario, t, with_x


class Count:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def said(*functions):
    """What each function returns or raises."""
    found = []
    for function in functions:
        try:
            found.append(function())
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found


@case(with_x(2, 3, 0, 1, -1))
def repeated_in_place(x, n):
    short, long = collections.deque([x, 2], maxlen=3), collections.deque([1, 2], maxlen=6)
    kept, plain = short, collections.deque([x])
    again = plain
    short *= n
    long *= n
    plain *= n
    return short, long, kept is short, again is plain, long * 2


@scenario(lambda held: [(t(2), 2), (t(2), 2), (t(2), 1)])
def repeated_from_outside():
    held = collections.deque([1, 2], maxlen=6)

    def program(x, n):
        nonlocal held
        held *= n
        return held, x

    return program, held


@case(lambda: [(t(2), collections.deque([x])) for x in (1, 2)])
def changed_at_its_last_element(x, held):
    def grow():
        for item in held:
            held.append(item)
            if len(held) > 5:
                break

    def turn():
        iterator = iter(held)
        held.rotate()
        return next(iterator, None)

    def backwards():
        for item in reversed(held):
            held.append(item)
            if len(held) > 9:
                break

    return said(turn, grow, backwards), list(held), x


@case(with_x(0, 1))
def places_by_index(x, n):
    held = collections.deque([x, 2, 3])
    held.rotate(Count(n))
    held.insert(Count(n), 5)
    held[Count(n)] = 7
    first = held[Count(n)]
    del held[Count(n + 1)]
    return held, first, held * Count(2)


@case(with_x(0))
def refused(x, n):
    held, empty = collections.deque([1, 2]), collections.deque()
    return x, said(
        lambda: held.insert("a", 1),
        lambda: held.rotate(2.0),
        lambda: empty.rotate("a"),
        lambda: held._items,
        lambda: held.__slots__,
        lambda: held.__doc__,
        lambda: held.remove(9),
        lambda: held["a"],
    )
