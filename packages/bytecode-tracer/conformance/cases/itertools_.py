"""The itertools module."""

from __future__ import annotations

import itertools
import operator
import sys

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


@case(with_x([1, 2, 3], [], [4]))
def half_consumed_and_returned(x, items):
    chained = itertools.chain(items, (x,), items)
    pairs = itertools.pairwise(items)
    longest = itertools.zip_longest(items, range(2), fillvalue=x)
    return next(chained, None), next(pairs, None), next(longest, None), chained, pairs, longest


@case(with_x([3, 1, 2], [5, 0], []))
def running_totals_half_consumed(x, items):
    totals = itertools.accumulate(items, lambda a, b: a - b, initial=10)
    started = itertools.accumulate(iter(items))
    return next(totals), next(totals, "none"), next(started, "none"), totals, started, x


@case(with_x(0, 1, 2, 5))
def cycles_at_any_place(x, n):
    cycle, once = itertools.cycle("abc"), itertools.cycle([x])
    taken = [next(cycle) for _ in range(n)]
    return taken, list(itertools.islice(cycle, 4)), next(once)


@case(with_x([1, 2, 3, 4], [1], []), then=lambda r: (r[0], [list(v) for v in r[1:]]))
def tee_read_unevenly(x, items):
    first, second, third = itertools.tee(items, 3)
    return [next(first, x), next(first, x), next(second, x)], first, second, third


@case(with_x([1, 5, 2, 7], [9], []))
def while_iterators_half_consumed(x, items):
    small = itertools.takewhile(lambda v: v < 5, items)
    rest = itertools.dropwhile(lambda v: v < 5, items)
    odd = itertools.filterfalse(lambda v: v % 2 == 0, items)
    return next(small, x), next(rest, x), next(odd, x), small, rest, odd


@case(with_x(0, 1, 4, 9))
def slices_stop_where_python_stops(x, n):
    seen = []

    def numbers():
        for value in range(8):
            seen.append(value)
            yield value

    source = numbers()
    cut = itertools.islice(source, 1, n, 3)
    return list(cut), list(cut), seen, next(source, None), x


@case(with_x(1, 3))
def arrangements_half_consumed(x, n):
    orders, choices = itertools.permutations(range(3)), itertools.combinations("abcd", 2)
    product = itertools.product([x, n], repeat=2)
    for _ in range(n):
        next(orders), next(choices), next(product)
    return orders, choices, product


@case(only(["aab", "abc"], ["", "aa"], ["bbb", "c"]))
def groups_are_shared(texts):
    found = []
    for text in texts:
        groups = itertools.groupby(text, key=str.upper)
        key, members = next(groups, ("none", iter("")))
        first = next(members, None)
        following = next(groups, None)
        found.append((key, first, list(members), following and list(following[1])))
    return found


@case(with_x([(1, 2), (3, 4)], [(5, 6)], []))
def star_map_of_own_function(x, pairs):
    made = itertools.starmap(lambda a, b: x * a - b, pairs)
    return list(itertools.islice(made, 1)), made


@case(only([1, 2, 3], [4], []), then=lambda r: (r[0], list(itertools.islice(r[1], 3)), r[2]))
def counting_by_steps(items):
    counter = itertools.count(0.5, -2)
    taken = [(next(counter), item) for item in items]
    return taken, counter, list(zip(itertools.count(len(items)), items))


@case(only(3, 0, -1, "a", None))
def wrong_bounds_of_slices(n):
    try:
        return list(itertools.islice(range(9), n))
    except ValueError as error:
        return str(error)


@case(only(-1, 1, 2))
def errors_of_arrangements(n):
    try:
        return list(itertools.permutations("ab", n)), list(itertools.product("ab", repeat=n))
    except ValueError as error:
        return str(error)


@case(with_x([1, 2, 3], [1], []))
def chain_of_lazy_parts(x, items):
    log = []

    def parts():
        for item in items:
            log.append(item)
            yield [item, item]

    chained = itertools.chain.from_iterable(parts())
    first = next(chained, x)
    return first, list(log), list(chained), log


class Copied:
    def __init__(self, count=0):
        self.count = count

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        if self.count > 4:
            raise StopIteration
        return self.count

    def __copy__(self):
        return Copied(self.count)


@case(with_x(1, 3))
def tee_of_what_is_copied(x, n):
    one, two = itertools.tee([1, 2, 3, 4])
    for _ in range(n):
        next(one)
    first, second = itertools.tee(one)
    source = Copied()
    third, fourth, fifth = itertools.tee(source, 3)
    found = [first is one, list(second), third is source, next(third), type(fourth) is Copied]
    found += [list(two.__copy__()), list(fourth), next(fifth), itertools.tee(3, 0)]
    return found, list(two), list(first), x


@case(with_x([1, 2, 3, 4, 5], [1]))
def grouped(x, items):
    pairs = list(itertools.pairwise(items))
    groups = {key: list(group) for key, group in itertools.groupby(items, lambda v: v // 2)}
    rest = list(itertools.dropwhile(lambda v: v < 3, items)), list(itertools.starmap(pow, pairs))
    batches = list(itertools.batched(items, 2)) if sys.version_info >= (3, 12) else []
    return x * sum(itertools.accumulate(items)), pairs, groups, rest, batches


@case(with_x(1, 2))
def combined(x, n):
    made = list(itertools.product("ab", range(n))), list(itertools.combinations("abc", n))
    more = list(itertools.permutations([1, 2, 3], n)), list(itertools.zip_longest("ab", [1]))
    first, second = itertools.tee([x, x * n])
    return next(first), list(second)[1], made, more, list(itertools.islice(itertools.count(n), 2))


@case(with_x(1, 2))
def endless(x, n):
    cycle = itertools.cycle("ab")
    taken = [next(cycle) for _ in range(3)]
    chained = itertools.chain.from_iterable([[n], [n + 1]])
    picked = itertools.compress("abc", [1, 0, n]), itertools.filterfalse(None, [0, 1, n])
    return x, taken, list(chained), [list(p) for p in picked], list(itertools.repeat(n, 2))
