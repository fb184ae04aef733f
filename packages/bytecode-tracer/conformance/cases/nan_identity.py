"""NaN in containers, which Python finds by its identity, as a number that changes becomes NaN."""

from __future__ import annotations

import time

from conformance.declare import case, t

_NAN, _OTHER, _INF = float("nan"), float("nan"), float("inf")


def _pairs():
    pairs = ((1.5, 2.5), (2.5, 3.5), (3.5, 3.5), (4.5, 4.5), (_NAN, _NAN), (_NAN, _OTHER))
    more = ((1.0, _NAN), (_NAN, 1.0), (_INF, _INF), (_INF, 0.0), (5.5, 6.5))
    return [(t(2), one, other) for one, other in (*pairs, *more)]


@case(_pairs)
def in_a_list(x, one, other):
    return x + 1, other in [one, 2.0], one in [one]


@case(_pairs)
def in_a_tuple(x, one, other):
    return x + 1, other in (one, 2.0), (other, 2.0).index(other), (one, other).count(one)


@case(_pairs)
def places_in_a_list(x, one, other):
    try:
        return x, [2.0, one].index(other), [one, one, other].count(other)
    except ValueError as error:
        return x, str(error)


@case(_pairs)
def removed_from_a_list(x, one, other):
    values = [one, other, 2.0]
    values.remove(other)
    return x, len(values)


@case(_pairs)
def compared_sequences(x, one, other):
    pairs = (one, 1) == (other, 1), [one] != [other], (one,) < (other,), (one, 2) <= (other, 1)
    same = (one, other)
    return x, pairs, same == same, (one, other) == (one, other), one == one, one != one


@case(_pairs)
def compared_dicts(x, one, other):
    return x, {"k": one} == {"k": other}, {"k": one} == {"k": one}, other in {1: one}.values()


@case(_pairs)
def computed(x, one, other):
    difference = one - other
    return x, difference in [difference], (one * other,) == (other * one,), +one in [one]


@case(_pairs)
def over_a_break(x, one, other):
    made, pair = [one], (other, 1)
    time.sleep(0)
    return x, other in made, pair == (one, 1), pair in [(one, 1)], made == [other]


@case(_pairs)
def of_a_tensor(x, one, other):
    value = (x.sum() * one).item()
    return x, value in [value], (value,) == (value,), [value].count(value)


@case(_pairs)
def as_keys(x, one, other):
    return x, other in {one, 2.0}, {one: 1}.get(other), {1: one}.items() == {1: other}.items()


@case(_pairs)
def matched(x, one, other):
    match [one]:
        case [value] if value in [other]:
            return x + 1
        case _:
            return x - 1
