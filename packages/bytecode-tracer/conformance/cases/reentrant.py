"""Code that is asked for an answer, and changes what asks for it meanwhile."""

from __future__ import annotations

import itertools

from conformance.declare import case, only, with_x


class Clearing:
    """Equal to nothing; it empties a list when it is asked."""

    def __init__(self, target):
        self.target = target

    def __eq__(self, other):
        self.target.clear()
        return NotImplemented

    __hash__ = None


@case(with_x(0, 1, 2))
def lists_emptied_by_a_comparison(x, left):
    one, two = [], []
    one.append(Clearing(two))
    two.extend([Clearing(one)] + [3] * left)
    return one == two, one, two, x


@case(with_x(0, 1))
def list_emptied_by_a_comparison_with_a_longer_one(x, extra):
    one, two = [], [1, 2][: 1 + extra]
    one.append(Clearing(one))
    return one == two, one != two, len(one), x


@case(with_x(0, 1))
def dicts_emptied_by_a_comparison(x, n):
    values = []
    one, two = {"a": Clearing(values), "b": n}, {"a": 1, "b": n}
    return one == two, values, x


class Reader:
    """An iterator that reads, at some elements, from what is built over it."""

    def __init__(self, at):
        self.at = at
        self.count = 0
        self.above = None

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        if self.count in self.at:
            return next(self.above)
        if self.count > 8:
            raise StopIteration
        return [self.count]


@case(only({1}, {2}, {3}, {1, 2}, {1, 3}, {2, 3}, set()))
def pairs_that_are_read_by_their_source(at):
    reader = Reader(at)
    reader.above = itertools.pairwise(reader)
    return [next(reader.above) for _ in range(2)], list(reader.above)


class Failing:
    """An iterator that fails once."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        if self.count == 3:
            raise KeyError(self.count)
        return self.count


@case(with_x(1, 2))
def pairs_end_where_their_source_fails(x, n):
    pairs, seen = itertools.pairwise(Failing()), []
    for _ in range(4):
        try:
            seen.append(next(pairs, "end"))
        except KeyError as error:
            seen.append(repr(error))
    return seen, x * n


@case(only(1, 2))
def tee_is_not_read_by_its_source(at):
    reader = Reader({at})
    first, reader.above = itertools.tee(reader)
    try:
        return [next(first) for _ in range(at)]
    except RuntimeError as error:
        return str(error), reader.count


@case(with_x(1, 2))
def function_that_reads_its_own_iterator(x, n):
    calls = []

    def source():
        calls.append(len(calls))
        if len(calls) == n:
            list(values)
        return "end" if len(calls) > n else calls[-1]

    values = iter(source, "end")
    return list(values), calls, x
