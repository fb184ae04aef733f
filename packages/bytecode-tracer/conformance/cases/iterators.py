"""Iterators and the built-in functions over them."""

from __future__ import annotations

import operator

from conformance.declare import case, only, t, with_x


@case(with_x([1, 2], [3], []))
def zip_two(x, items):
    return [x * a + b for a, b in zip(items, range(5))]


@case(with_x([1, 2], [3], [1, 2, 3]))
def zip_strict(x, items):
    return [x + a * b for a, b in zip(items, (4, 5), strict=True)]


@case(with_x([1, 2], [3], []))
def map_function(x, items):
    return [x + v for v in map(lambda a, b: a * b, items, [4, 5])]


@case(with_x([1, 2, 0], [3, -1], []))
def filter_function(x, items):
    return [x + v for v in filter(lambda v: v > 0, items)], list(filter(None, items))


@case(with_x(0, 5))
def enumerate_with_start(x, n):
    return {i: row for i, row in enumerate(x, n)}


@case(with_x([1, 2], [3], "ab", (1,), {"k": 1}))
def reversed_of_any_sequence(x, items):
    return list(reversed(items)), x


@case(only([3, 1, 2], [3.5, 1], ["b", "a"], []))
def sorted_plain(items):
    return sorted(items), sorted(items, reverse=True)


@case(only([(1, "b"), (0, "c")], [(2, "a"), (2, "b")]))
def sorted_by_key(pairs):
    by_second = sorted(pairs, key=lambda pair: pair[1])
    return by_second, sorted(pairs, key=operator.itemgetter(0), reverse=True)


@case(only([3, 1, 2], [1], []))
def min_and_max(items):
    return min(items, default=None), max(items, default="none"), max(items)


@case(only(["aa", "b"], ["c", "ddd", "ee"]))
def min_by_key(items):
    return min(items, key=len), max(items, key=len), max(*items, "zzzz", key=len)


@case(only([1, 0], [1, 2], [], [None, "a"]))
def any_and_all(items):
    return any(items), all(items)


@case(lambda: [([t(2), t(2)],), ([t(3)],), ([],)])
def sum_of_tensors(items):
    return sum(items)


@case(only([[1], [2, 3]], [[4]], []))
def sum_of_lists_with_start(items):
    return sum(items, [])


class Countdown:
    def __init__(self, start):
        self.start = start
        self.steps = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.steps += 1
        if self.start == 0:
            raise StopIteration
        self.start -= 1
        return self.start


@case(lambda: [(t(2), Countdown(3)), (t(2), Countdown(1)), (t(2), Countdown(0))])
def user_iterator_as_argument(x, values):
    for value in values:
        x = x + value
    return x


@case(with_x(3, 1))
def user_iterator_made_inside(x, n):
    values = Countdown(n)
    return [x * v for v in values], values.steps


class OldStyle:
    def __init__(self, *items):
        self.items = items

    def __getitem__(self, index):
        return self.items[index]


@case(lambda: [(t(2), OldStyle(1, 2)), (t(2), OldStyle(3)), (t(2), OldStyle())])
def iteration_by_getitem(x, values):
    return [x + value for value in values], 2 in values


@case(lambda: [(t(2), iter([1, 2, 3])), (t(2), iter((4, 5))), (t(2), iter("abc"))])
def iterator_argument_advanced(x, values):
    return next(values), x


@case(lambda: [(t(2), iter(range(3))), (t(2), iter({"a": 1})), (t(2), reversed([1, 2]))])
def iterator_argument_exhausted(x, values):
    return x, list(values), list(values)


@case(lambda: [(t(2), zip([1, 2], "ab")), (t(2), map(abs, [-1])), (t(2), enumerate("ab"))])
def builtin_iterator_as_argument(x, values):
    return x, [*values]


@case(with_x(3, 4))
def iterators_returned(x, n):
    return zip(range(n), [x, x]), map(str, range(n)), iter([x]), enumerate("ab"), reversed([1, n])


@case(with_x(3, 4))
def partly_consumed_iterators_returned(x, n):
    pairs, values = zip(range(n), "abcd"), iter([1, 2, 3])
    next(pairs), next(values)
    return pairs, values, x


@case(with_x(2, 3))
def iter_with_sentinel(x, n):
    items = [1, n, 3, 4]
    return x + sum(iter(lambda: items.pop(0), n)), items


@case(with_x(2, 3))
def same_iterator_zipped_with_itself(x, n):
    values = iter(range(2 * n))
    return [(a, b) for a, b in zip(values, values)], x


@case(with_x(3, 5))
def range_properties(x, n):
    r = range(1, n * 2, 2)
    return (
        len(r),
        r[-1],
        3 in r,
        r.start,
        r.stop,
        r.step,
        r[1:],
        x + r.index(3),
        r == range(1, 7, 2),
    )


@case(lambda: [(t(2), range(3)), (t(2), range(2)), (t(2), range(0, 6, 2)), (t(2), range(3))])
def range_as_argument(x, values):
    return [x + v for v in values], values


@case(with_x(2, 3))
def mutation_during_iteration(x, n):
    items = [1, 2]
    for item in items:
        if len(items) < 2 + n:
            items.append(item * 10)
    return x, items


@case(with_x({"a": 1, "b": 2}, {"a": 1}, {}))
def dict_changed_during_iteration(x, table):
    for key in table:
        table[key + "x"] = x
    return table


@case(with_x(2, 0))
def for_else(x, n):
    for i in range(3):
        if i == n:
            break
    else:
        i = "none"
    for _ in range(n):
        pass
    else:
        x = x + 1
    return x, i


@case(with_x([1, 2, 3], [1, 2], [1]))
def unpack_iterator(x, items):
    try:
        a, b = iter(items)
    except ValueError as error:
        return str(error), x
    return a, b, x


@case(lambda: [(t(2, 2),), (t(3, 2),), (t(1, 2),), (t(0, 2),)])
def tensor_rows(x):
    return list(x), [*x], tuple(zip(x, x)), list(map(lambda row: row + 1, x)), list(enumerate(x))


@case(lambda: [(t(2, 2),), (t(3, 2),), (t(2, 2),)])
def unpack_rows(x):
    first, second = x
    return first + second, first


@case(with_x(3, 2))
def iterate_while_consuming(x, n):
    values = iter(range(10))
    got = []
    for value in values:
        got.append(value)
        for _ in range(n):
            next(values, None)
    return got, x


@case(only([1, 2, 3], (4, 5), {"a": 1}, "xyz", b"ab"))
def length_hints(items):
    iterator = iter(items)
    before = operator.length_hint(iterator)
    next(iterator)
    return before, operator.length_hint(iterator), len(items)


@case(lambda: [([1, 2, 3], 1), ([], 4), ([5, 6], 0)])
def list_iterator_sees_growth(items, more):
    iterator = iter(items)
    first = next(iterator, None)
    items.append(more)
    rest = list(iterator)
    items.append(7)
    return first, rest, next(iterator, "exhausted"), iterator, items


@case(with_x([1, 2, 3], [4], []))
def half_consumed_builtins(x, items):
    pairs, counted = zip(items, "abc"), enumerate(items, 5)
    doubled, chosen = map(lambda v: v * 2, items), filter(None, [0, *items])
    backwards, stepped = reversed(items), iter(range(0, 9, 3))
    made = [pairs, counted, doubled, chosen, backwards, stepped, iter({"a": 1, "b": 2})]
    return [next(iterator, x) for iterator in made], made


@case(with_x([1, 2, 3], [], [4, 5]))
def print_inside_of_loop(x, items):
    total = x
    for place, item in enumerate(items):
        print(place, total.sum())
        total = total + item
    return total


@case(
    lambda: [
        (t(2), enumerate([1, 2, 3])),
        (t(2), zip([1, 2], [3, 4])),
        (t(2), map(abs, [-1, 2])),
        (t(2), iter((1, 2))),
        (t(2), iter({"a": 1}.items())),
        (t(2), iter([])),
    ],
)
def iterator_argument_in_loop(x, values):
    first = next(values, None)
    return first, [value for value in values], next(values, "end"), x


@case(with_x([3, 1, 2], [1], []))
def map_stops_at_the_first_end(x, items):
    source = iter(items)
    other = iter([10, 20])
    sums = list(map(lambda a, b: a + b, source, other))
    return sums, list(source), list(other), x


class Reversed:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        if place >= 3:
            raise IndexError(place)
        return place * 2


@case(only(0, 2, 5))
def reversed_by_protocol(n):
    made = Reversed(n)
    return list(made), 4 in made, 5 in made, list(reversed(made)) if n < 4 else None


class Ranked:
    compared = []

    def __init__(self, rank):
        self.rank = rank

    def __lt__(self, other):
        Ranked.compared.append((self.rank, other.rank))
        return self.rank < other.rank


@case(only([3, 1, 2], [1], [2, 2, 0, 5]))
def sorted_by_own_comparison(ranks):
    Ranked.compared = []
    items = [Ranked(rank) for rank in ranks]
    items.sort(reverse=True)
    least = min(items, key=lambda item: -item.rank)
    return [item.rank for item in sorted(items)], least.rank, Ranked.compared


@case(only([1, "a"], [2, 1], [None, 1]))
def sort_that_fails(items):
    try:
        items.sort()
    except TypeError as error:
        return str(error), items
    return items


@case(with_x(3, 0))
def iterator_until_sentinel(x, n):
    left = [3, 2, 1, n, 5]
    popped = list(iter(left.pop, n))
    return popped, left, x


@case(only([1, 2, 3], [], [0]))
def methods_of_iterators(items):
    iterator = iter(items)
    hint = iterator.__length_hint__()
    found = iterator.__next__() if items else None
    return hint, found, iterator.__iter__() is iterator, iterator.__length_hint__()


@case(only([1, 2], [3]))
def types_of_iterators(items):
    made = [iter(items), iter(tuple(items)), reversed(items), zip(items), iter({1: 2}.items())]
    return [type(iterator).__name__ for iterator in made]
