"""The functools module: partial, caches, reduce, wraps, dispatch, ordering."""

from __future__ import annotations

import functools
import operator

import torch

from conformance.declare import case, only, scenario, t, with_x

CALLS = []


@functools.lru_cache(maxsize=None)
def slow(n):
    CALLS.append(n)
    return n * 10


@functools.cache
def table(n):
    return torch.arange(n).float()


@functools.lru_cache(maxsize=1)
def configured(scale, *, offset=0):
    CALLS.append((scale, offset))
    return scale + offset


@functools.singledispatch
def describe(value):
    return "object"


@describe.register
def _(value: int):
    return f"int {value}"


@describe.register(list)
def _(value):
    return ["list", *map(describe, value)]


@describe.register
def _(value: torch.Tensor):
    return value * 2


@functools.total_ordering
class Ranked:
    def __init__(self, rank):
        self.rank = rank

    def __eq__(self, other):
        return self.rank == other.rank

    def __lt__(self, other):
        return self.rank < other.rank


def power(base, exponent=2, *, scale=1):
    return base**exponent * scale


@case(with_x(1, 2))
def partial_made_inside(x, n):
    cube = functools.partial(power, exponent=3)
    double = functools.partial(power, scale=2)
    return cube(x), double(x, n), functools.partial(cube, x)(scale=n)


@case(
    lambda: [
        (t(2), functools.partial(power, exponent=3)),
        (t(2), functools.partial(power, exponent=1)),
        (t(2), functools.partial(power, scale=5)),
        (t(2), functools.partial(torch.add, 1)),
    ]
)
def partial_as_argument(x, function):
    return function(x)


@case(with_x(1, 2))
def partial_attributes(x, n):
    made = functools.partial(power, x, scale=n)
    return made.func is power, made.args, made.keywords, made(), isinstance(made, functools.partial)


@case(with_x(1, 2), then=lambda f: f())
def partial_returned(x, n):
    return functools.partial(power, x, n, scale=3)


@scenario(lambda: [(t(2),), (t(3),)])
def partial_object_called():
    bound = functools.partial(power, exponent=3)

    def program(x):
        return bound(x), bound(x, scale=2)

    return program


@case(with_x(1, 2, 1))
def cached_function(x, n):
    return x * slow(n) + slow(n), len(CALLS)


@case(lambda: [(t(3), 3), (t(2), 2), (t(3), 3)])
def cached_tensor(x, n):
    return x + table(n), table(n) is table(n)


@case(with_x(1, 2, 1, 1))
def bounded_cache(x, n):
    a = configured(n)
    b = configured(n, offset=1)
    return x * a + b, configured.cache_info(), len(CALLS)


@case(with_x(1, 2))
def cache_made_inside(x, n):
    calls = []

    @functools.lru_cache
    def fibonacci(k):
        calls.append(k)
        return k if k < 2 else fibonacci(k - 1) + fibonacci(k - 2)

    return x + fibonacci(6 + n), len(calls)


@case(with_x(1, [1, [2]], "a", True))
def single_dispatch(x, value):
    return describe(value), describe(x)


@case(with_x([1, 2, 3], [4], []))
def reduction(x, items):
    return functools.reduce(operator.add, items, x), functools.reduce(lambda a, b: a * b, items, 1)


@case(only([], [1]))
def reduction_without_start(items):
    return functools.reduce(operator.add, items)


@case(with_x(1, 2))
def wrapped(x, n):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) + n

        return wrapper

    @decorate
    def named(y):
        """Doc."""
        return y * 2

    return named(x), named.__name__, named.__doc__, named.__wrapped__(x)


@scenario(lambda: [(t(2),), (t(3),), (t(2),)])
def wrapped_program():
    def logged(function):
        @functools.wraps(function)
        def wrapper(x):
            CALLS.append(function.__name__)
            return function(x)

        return wrapper

    @logged
    def program(x):
        return x * len(CALLS)

    return program


@case(only([3, 1, 2], [1]))
def comparison_key(items):
    return sorted(items, key=functools.cmp_to_key(lambda a, b: b - a))


@case(with_x(1, 2, 3))
def total_order(x, n):
    a, b = Ranked(n), Ranked(2)
    return a <= b, a > b, a >= b, a == b, max(a, b).rank * x


@case(with_x(1, 2))
def partial_method(x, n):
    class Local:
        def scaled(self, y, scale):
            return y * scale

        doubled = functools.partialmethod(scaled, scale=n * 2)

    return Local().doubled(x)


@case(with_x("a", 1, 2.0))
def single_dispatch_method(x, value):
    class Local:
        @functools.singledispatchmethod
        def show(self, item):
            return "other", x

        @show.register
        def _(self, item: int):
            return x * item

    return Local().show(value)


class Point:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def scaled(self, n, *, by=1):
        return self.a * n + by


@case(with_x(2, 3))
def getters_as_keys(x, n):
    points = [Point(3, "c"), Point(n, "b"), Point(1, "a")]
    points.sort(key=operator.attrgetter("a"))
    pick, call = operator.itemgetter(0, slice(1, n)), operator.methodcaller("scaled", n, by=5)
    return [p.b for p in points], pick([x, 1, 2, 3]), call(points[0]), pick, call


@case(with_x(2, -1))
def partials_have_parts(x, n):
    inner = functools.partial(pow, n)
    outer = functools.partial(inner, 3, mod=5) if n > 0 else functools.partial(inner, 2)
    inner.note = x
    return inner.func, outer.args, outer.keywords, outer.func is pow, inner, outer()


@case(only([3, 1, 2], ["b", "a"], []))
def keys_of_comparisons(items):
    key = functools.cmp_to_key(lambda a, b: (a < b) - (a > b))
    keys = sorted(map(key, items))
    return [k.obj for k in keys], [k < keys[0] for k in keys], type(key(0)).__name__


@case(with_x(2, 3))
def cache_of_a_local_function(x, n):
    calls = []

    @functools.lru_cache(maxsize=2)
    def table(k, *, offset=0):
        calls.append(k)
        return k * n + offset

    values = [table(k) for k in (1, 2, 1, 3, 1, 2)] + [table(1, offset=1)]
    return x + sum(values), calls, table.cache_info(), table.__name__


@functools.lru_cache(maxsize=None)
def pure(n):
    return n * n + 1


@case(with_x(2, 3, 4))
def cache_without_effects(x, n):
    return x * pure(n) + pure(n)


@functools.cache
def failing(n):
    CALLS.append(n)
    raise ValueError(n)


@case(with_x(2, 3))
def cached_function_that_raises(x, n):
    try:
        return failing(n)
    except ValueError as error:
        return error.args, len(CALLS)


@functools.lru_cache
def version_of(name):
    return len(name)


@functools.lru_cache(maxsize=3)
def is_newer(name, than, strict=False):
    return version_of(name) > than or (not strict and version_of(name) == than)


@case(with_x("a", "abc", "a", "abcd", "a", "ab"))
def caches_that_call_each_other(x, name):
    found = is_newer(name, 1), is_newer(name, 3), is_newer(name, 1, strict=True)
    return x * sum(found), found


@case(with_x("a", "abc", "a", "abcd", "a", "ab"))
def cache_that_overflows(x, name):
    found = [is_newer(name, n) for n in range(5)]
    return x * sum(found), is_newer(name, 0), is_newer.__wrapped__(name, 1)


@functools.lru_cache(maxsize=1)
def positions(mask, scale=1):
    return mask.cumsum(0) * scale


@case(with_x(1, 2, 1), then=lambda result: (result, positions.cache_info()))
def cache_of_tensors_made_inside(x, n):
    found = positions(x > 0, n)
    return x + found.sum()


@case(with_x(1, 2), then=lambda result: (result, positions.cache_info()))
def cache_of_tensors_asked_again(x, n):
    mask = x > 0
    first = positions(mask, n)
    return first is positions(mask, n), mask, x


@case(with_x(1, 2), then=lambda result: (result, positions(*result[1:]) is result[0]))
def cache_of_tensors_that_are_returned(x, n):
    mask = x > 0
    return positions(mask, n), mask, n


@case(with_x(1, 2), then=lambda result: (result, positions.cache_info()))
def cache_of_tensors_across_a_break(x, n):
    found = positions(x > 0, n)
    print(x.sum())
    return found + positions(x < 0, n)


@functools.singledispatch
def shown(value):
    return "object"


@shown.register
def _(value: int):
    return "int"


@shown.register(list)
def _(value):
    return f"list of {len(value)}"


@functools.total_ordering
class Weight:
    def __init__(self, grams):
        self.grams = grams

    def __eq__(self, other):
        return self.grams == other.grams

    def __lt__(self, other):
        return self.grams < other.grams


class Methods:
    def __init__(self, n):
        self.n = n

    @functools.singledispatchmethod
    def of(self, value):
        return "object"

    @of.register
    def _(self, value: int):
        return value * self.n

    @functools.cached_property
    def double(self):
        return self.n * 2

    def power(self, base, exponent):
        return base**exponent * self.n

    squared = functools.partialmethod(power, exponent=2)


@case(with_x(1, [1, 2], "a", True))
def dispatched(x, value):
    return x, shown(value), shown.dispatch(int)(1), Methods(2).of(value)


@case(with_x(1, 2))
def ordering(x, n):
    a, b = Weight(n), Weight(2)
    return (
        x,
        a <= b,
        a > b,
        a >= b,
        sorted([b, a], key=functools.cmp_to_key(lambda p, q: p.grams - q.grams))[0].grams,
    )


@case(lambda: [(t(2), Methods(2)), (t(2), Methods(3))])
def methods_made(x, methods):
    return x * methods.double, methods.squared(3), methods.__dict__["double"], methods.double


@functools.lru_cache(maxsize=2)
def cached(n):
    return n * 10


@case(with_x(1, 2, 1))
def caches(x, n):
    @functools.cache
    def fibonacci(k):
        return k if k < 2 else fibonacci(k - 1) + fibonacci(k - 2)

    return x * cached(n), fibonacci(n + 5), functools.reduce(lambda a, b: a * b, [1, n, 3])


@functools.lru_cache
def cached_by_tensor(x, n):
    return x * n


@case(with_x(1, 2))
def caches_by_tensor(x, n):
    first = cached_by_tensor(x, n)
    return first, cached_by_tensor(x, n) is first, cached_by_tensor.cache_info().hits > 0
