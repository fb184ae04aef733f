"""The itertools module."""

from __future__ import annotations

import itertools
import operator

from conformance.declare import case, only, t, with_x


@case(with_x([1, 2], [3], []))
def chained(x, items):
    return [x + v for v in itertools.chain(items, (7, 8), items)]


@case(only([[1], [2, 3]], [[]], [[4]]))
def chained_from_iterable(items):
    return list(itertools.chain.from_iterable(items))


@case(with_x(2, 3))
def product_of_ranges(x, n):
    return [x * a + b for a, b in itertools.product(range(n), repeat=2)]


@case(with_x("abc", "ab", "a"))
def permutations_and_combinations(x, text):
    pairs = list(itertools.permutations(text, 2))
    return pairs, list(itertools.combinations(text, 2)), x


@case(with_x("ab", "a"))
def combinations_with_replacement(x, text):
    return list(itertools.combinations_with_replacement(text, 2)), x


@case(with_x(2, 3))
def slices(x, n):
    return list(itertools.islice(itertools.count(n, 2), 1, 6, 2)), x


@case(with_x(2, 3))
def slice_leaves_the_rest(x, n):
    values = iter(range(6))
    return list(itertools.islice(values, n)), values, x


@case(with_x(2, 3))
def accumulate(x, n):
    sums = list(itertools.accumulate(range(n)))
    return sums, list(itertools.accumulate([x, x, x], operator.mul, initial=n))


@case(only([1, 1, 2, 1], ["a", "b"], []))
def group_by(items):
    return [(key, list(group)) for key, group in itertools.groupby(items)]


@case(with_x([1, 4, 2], [5, 1], [0]))
def take_and_drop_while(x, items):
    small = itertools.takewhile(lambda v: v < 4, items)
    return list(small), list(itertools.dropwhile(lambda v: v < 4, items)), x


@case(with_x(2, 3))
def repeated(x, n):
    return [v + 1 for v in itertools.repeat(x, n)]


@case(with_x([1, 2], [1]))
def cycled(x, items):
    cycle = itertools.cycle(items)
    return [x * next(cycle) for _ in range(3)]


@case(with_x([1, 2, 3], [1], []))
def zip_longest(x, items):
    return list(itertools.zip_longest(items, (x, x), fillvalue=0))


@case(with_x([1, 2, 3], [1]))
def star_map(x, items):
    return [x + v for v in itertools.starmap(pow, zip(items, items))]


@case(with_x([1, 2, 3], [1]))
def tee(x, items):
    a, b = itertools.tee(iter(items))
    return next(a), list(b), list(a), x


@case(only([1, 2, 3], [1], []))
def pairwise(items):
    return list(itertools.pairwise(items))


@case(only([1, 0, 1], [True, False], []))
def compress_and_filter_false(flags):
    return list(itertools.compress("abc", flags)), list(itertools.filterfalse(None, flags))


@case(with_x(2, 3))
def counting(x, n):
    counter = itertools.count()
    return [next(counter) + n for _ in range(3)], counter, x


COUNTER = itertools.count(10)


@case(lambda: [(t(2),), (t(2),), (t(3),)])
def global_counter_advances(x):
    return x + next(COUNTER)


@case(
    lambda: [(t(2), itertools.count(1)), (t(2), itertools.count(5)), (t(2), itertools.cycle("a"))]
)
def argument_advances(x, values):
    return next(values), next(values), x


@case(with_x(2, 3))
def chain_returned_unconsumed(x, n):
    return itertools.chain([x], range(n)), itertools.islice(range(10), n)
