"""Generators: lazy, passed around, half-consumed, `send`, `throw`, `yield from`."""

from __future__ import annotations

import torch

from conformance.declare import case, scenario, t, with_x


def count_up(n, log=None):
    for i in range(n):
        if log is not None:
            log.append(i)
        yield i


@case(with_x(2, 3, 0))
def sum_of_generator(x, n):
    return x + sum(count_up(n))


@case(with_x(2, 3))
def generator_expression(x, n):
    return sum(x * i for i in range(n))


@case(with_x(2, 3))
def laziness_is_kept(x, n):
    log = []
    values = count_up(5, log)
    taken = [next(values) for _ in range(n)]
    return x + sum(taken), log


@case(with_x(2, 3))
def generator_left_half_consumed(x, n):
    log = []
    for value in count_up(10, log):
        if value == n:
            break
    return x * value, log


@case(with_x(2, 3))
def generator_returned(x, n):
    return (x * i for i in range(n))


@case(with_x(2, 3))
def half_consumed_generator_returned(x, n):
    values = count_up(n + 2)
    first = next(values)
    return values, x + first


@case(lambda: [(t(2), count_up(3)), (t(2), count_up(2)), (t(2), iter([5]))])
def generator_as_argument(x, values):
    return x + sum(values)


@case(lambda: [(t(2), count_up(3)), (t(2), count_up(2)), (t(2), count_up(5))])
def generator_argument_partly_consumed(x, values):
    return x + next(values), values


@case(lambda: [(t(2), (i * i for i in range(3))), (t(2), (i for i in "ab"))])
def generator_expression_as_argument(x, values):
    return x, list(values)


@case(with_x(1, 2))
def yield_from(x, n):
    def outer():
        yield x
        result = yield from inner()
        yield result

    def inner():
        yield n
        yield n + 1
        return x * n

    return list(outer())


@case(with_x([1, [2, [3]]], [[[]]], [4, [5]]))
def recursive_generator(x, tree):
    def flatten(node):
        for item in node:
            if isinstance(item, list):
                yield from flatten(item)
            else:
                yield item

    return [x + item for item in flatten(tree)]


@case(with_x(1, 2))
def send_values(x, n):
    def averager():
        total, value = 0, None
        while True:
            value = yield total
            if value is None:
                return
            total = total + value

    running = averager()
    next(running)
    return x * running.send(n), running.send(5), running.send(x)


@case(with_x(1, 2))
def throw_into_generator(x, n):
    def robust():
        value = x
        while True:
            try:
                yield value
            except ValueError as error:
                value = value + error.args[0]

    values = robust()
    next(values)
    return values.throw(ValueError(n)), next(values)


@case(with_x(1, 2))
def close_runs_finally(x, n):
    log = []

    def guarded():
        try:
            yield x
            yield x + n
        finally:
            log.append("closed")

    values = guarded()
    first = next(values)
    values.close()
    return first, log, list(values)


@case(with_x(1, 2))
def return_value_in_stop_iteration(x, n):
    def short():
        yield x
        return n

    values = short()
    next(values)
    try:
        next(values)
    except StopIteration as stop:
        return stop.value, x


@case(with_x(0, 2))
def next_with_default(x, n):
    values = count_up(n)
    return [next(values, x) for _ in range(3)]


@case(with_x(0, 1))
def next_on_empty_raises(x, n):
    values = count_up(n)
    return next(values) + x


@case(with_x(1, 2))
def exception_inside_generator(x, n):
    def failing():
        yield x
        raise KeyError(n)

    got = []
    try:
        for value in failing():
            got.append(value)
    except KeyError as error:
        return got, error.args


@case(with_x(1, 2))
def stop_iteration_becomes_runtime_error(x, n):
    def wrong():
        yield x
        raise StopIteration(n)

    return list(wrong())


@case(with_x(3, 4))
def pipeline(x, n):
    def squares(values):
        for value in values:
            yield value * value

    def evens(values):
        return (value for value in values if value % 2 == 0)

    return x + sum(squares(evens(count_up(n))))


@case(with_x(2, 3))
def two_interleaved(x, n):
    a, b = count_up(n), (x + i for i in range(n))
    return [(p, q) for p, q in zip(a, b)], next(a, "end")


@case(with_x(2, 3))
def generator_with_state_outside(x, n):
    scale = 1

    def produce():
        for _ in range(n):
            yield x * scale

    made = produce()
    first = next(made)
    scale = 10
    return first, next(made)


@case(with_x(2, 3))
def generator_in_tuple_and_star(x, n):
    first, *rest = count_up(n)
    return x, first, rest, (*count_up(2),), max(count_up(n))


class Tree:
    def __init__(self, value, *children):
        self.value, self.children = value, children

    def __iter__(self):
        yield self.value
        for child in self.children:
            yield from child


@case(lambda: [(t(2), Tree(1, Tree(2), Tree(3))), (t(2), Tree(4)), (t(2), Tree(1, Tree(5)))])
def generator_method_as_iter(x, tree):
    return [x + value for value in tree]


@case(with_x(2, 3))
def generator_attributes(x, n):
    values = count_up(n)
    return values.gi_running, values.__name__, iter(values) is values, x + next(values)


@case(with_x(2, 3))
def any_stops_early(x, n):
    log = []
    found = any(value == 1 for value in count_up(10, log))
    whole = all(value < n for value in count_up(10, log))
    return x, found, whole, log


@case(with_x(2, 3))
def infinite_generator(x, n):
    def forever():
        k = n
        while True:
            yield k
            k += 1

    return [x * k for k, _ in zip(forever(), range(3))]


@case(with_x(2, 5))
def generator_mutates_tensor_as_it_goes(x, n):
    def steps():
        for _ in range(3):
            x.add_(n)
            yield x.clone()

    return list(steps())


@case(with_x(1, 2))
def yield_inside_with_and_try(x, n):
    log = []

    def managed():
        log.append("in")
        try:
            for i in range(n):
                yield x + i
        finally:
            log.append("out")

    return [*managed()], log


def driven(made):
    """A generator after a call, sent to, thrown into and closed."""
    found = [made.gi_frame.f_lineno - made.gi_code.co_firstlineno, made.__name__]
    for action in (lambda: made.send(5), lambda: made.throw(ValueError(3)), lambda: next(made)):
        try:
            found.append(action())
        except StopIteration as error:
            found.append(("stopped", error.value))
    return found


@case(with_x(1, 2), then=lambda result: (driven(result[0]), result[1]))
def half_consumed_generator_is_driven(x, n):
    def values():
        try:
            sent = yield x + n
            while True:
                sent = yield x + sent
        except ValueError as error:
            yield "caught", error.args
        finally:
            log.append("finally")
        return n

    log = []
    made = values()
    next(made)
    made.send(2)
    return made, log


def closed(made):
    made.close()
    return made.gi_frame


@case(with_x(1, 2), then=lambda result: (closed(result[0]), result[1]))
def half_consumed_generator_is_closed(x, n):
    log = []

    def values():
        with torch.no_grad():
            try:
                yield x
            finally:
                log.append(n)

    made = values()
    next(made)
    return made, log


@case(with_x(1, 2), then=lambda made: (next(made), list(made), made.gi_frame))
def generator_over_generator_half_consumed(x, n):
    def inner():
        for i in range(4):
            yield x + i

    def outer():
        yield from inner()
        yield from [n, n + 1]

    made = outer()
    next(made)
    return made


@case(with_x(1, 2))
def thrown_through_yield_from(x, n):
    def inner():
        try:
            got = yield x
            got = yield got
        except KeyError as error:
            got = error.args
            yield "handled"
        return got

    def outer():
        result = yield from inner()
        yield "result", result

    made, other = outer(), outer()
    found = [next(made), made.send(n), made.throw(KeyError(n)), next(made)]
    next(other)
    try:
        other.throw(ValueError(n))
    except ValueError as error:
        found.append(error.args)
    return found, list(other)


class Reply:
    """An iterator that returns a value and takes what is sent."""

    def __init__(self, n):
        self.n, self.seen = n, []

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        self.seen.append(value)
        if len(self.seen) > self.n:
            raise StopIteration(tuple(self.seen))
        return len(self.seen)

    def throw(self, error):
        self.seen.append(type(error).__name__)
        return "thrown"

    def close(self):
        self.seen.append("closed")


@case(with_x(1, 2, 3))
def yield_from_an_object(x, n):
    reply = Reply(n)

    def outer():
        return (yield from reply), x

    made = outer()
    found = [next(made)]
    try:
        found += [made.throw(KeyError(n)), made.send("a"), made.send("b")]
    except StopIteration as error:
        found.append(error.value)
    later = outer()
    reply.n += 9
    next(later)
    later.close()
    return found, reply.seen


@case(with_x(1, 2))
def errors_of_generators(x, n):
    def values():
        yield x
        yield from values_that_ignore()

    def values_that_ignore():
        try:
            yield n
        except GeneratorExit:
            yield n + 1

    found = []
    made = values()
    actions = [
        lambda: made.send(1),
        lambda: next(made),
        lambda: next(made),
        lambda: made.close(),
        lambda: made.throw(5),
        lambda: made.throw(KeyError),
        lambda: made.throw(ValueError, "text"),
        lambda: next(made, "default"),
    ]
    for action in actions:
        try:
            found.append(action())
        except (TypeError, RuntimeError, KeyError, ValueError) as error:
            found.append((type(error).__name__, str(error)))
    return found


class Waits:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        got = yield self.value
        return got


class Counts:
    def __init__(self, n):
        self.n = n

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.n == 0:
            raise StopAsyncIteration
        self.n -= 1
        return await Waits(self.n)


class Manager:
    def __init__(self, log):
        self.log = log

    async def __aenter__(self):
        self.log.append("enter")
        return await Waits("entering")

    async def __aexit__(self, kind, error, traceback):
        self.log.append(kind)
        await Waits("leaving")
        return kind is KeyError


def finish(coroutine, sent):
    """Drive a coroutine by hand: what it asked for, and what it returned."""
    found = []
    try:
        found.append(coroutine.send(None))
        while True:
            found.append(coroutine.send(sent))
    except StopIteration as error:
        return found, error.value


@case(with_x(1, 2))
def coroutine_driven_by_hand(x, n):
    async def leaf(k):
        return x + await Waits(k)

    async def root():
        return await leaf(n), await leaf(n + 1)

    return finish(root(), 3)


@case(with_x(0, 2))
def asynchronous_for_and_with(x, n):
    log = []

    async def root():
        found = []
        async for value in Counts(n):
            found.append(x + value)
        async with Manager(log) as entered, Manager(log):
            raise KeyError(n)
        return found, entered, [i async for i in Counts(n)]

    return finish(root(), 1), log


@case(with_x(1, 2), then=lambda made: finish(made, 4))
def coroutine_returned(x, n):
    async def leaf():
        return x * n + await Waits(n)

    return leaf()


@case(with_x(1, 2), then=lambda made: [made.send(4), made.close()])
def begun_coroutine_returned(x, n):
    async def leaf():
        try:
            await Waits(n)
            await Waits(x + n)
        finally:
            x.add_(1)

    made = leaf()
    made.send(None)
    return made


@case(with_x(1, 2))
def coroutine_errors(x, n):
    async def plain():
        return n

    async def wrong():
        await n

    found = []
    once = plain()
    actions = [
        lambda: once.send(1),
        lambda: once.send(None),
        lambda: once.send(None),
        lambda: wrong().send(None),
        lambda: iter(wrong()),
    ]
    for action in actions:
        try:
            found.append(action())
        except (TypeError, RuntimeError, StopIteration) as error:
            found.append((type(error).__name__, str(error)))
    return found, x


@case(with_x(1, 2))
def never_awaited(x, n):
    async def leaf():
        return n

    leaf()
    return x + n


class Feed:
    def __init__(self):
        self.items = None


@case(lambda: [(t(2), Feed()), (t(3), Feed())], then=lambda feed: [next(feed.items) for _ in "ab"])
def generator_stored_in_an_object(x, feed):
    feed.items = (x * i for i in range(5))
    next(feed.items)
    return feed


@case(with_x([1, 2, 3], (4, 5, 6), {"a": 1, "b": 2}, "abc"), then=lambda found: [*map(list, found)])
def iterators_half_consumed(x, values):
    made = [iter(values), enumerate(values), zip(values, [x, x + 1]), map(str, values)]
    for iterator in made:
        next(iterator)
    return made


# What `yield from` does with what it delegates to.


class Numbers:
    """An iterator of its own class, which ends with a value."""

    def __init__(self, count, last):
        self.count = count
        self.last = last

    def __iter__(self):
        return self

    def __next__(self):
        if not self.count:
            raise StopIteration(self.last)
        self.count -= 1
        return self.count


class Taking(Numbers):
    def send(self, value):
        self.count += value
        return self.count

    def throw(self, error):
        return type(error).__name__

    def close(self):
        self.last = "closed"


@case(with_x(2, 0))
def yield_from_gives_the_value_of_any_iterator(x, n):
    def outer():
        return (yield from Numbers(n, "end"))

    made = outer()
    found = []
    while True:
        try:
            found.append(next(made))
        except StopIteration as stop:
            return x * n, found, stop.value


@case(with_x(2, 3))
def yield_from_an_object_with_send_throw_and_close(x, n):
    inner = Taking(n, None)

    def outer():
        yield from inner

    made = outer()
    found = [next(made), made.send(10), made.throw(KeyError("k"))]
    made.close()
    return x + found[1], found, inner.last


@case(with_x(0, 1))
def attribute_hooks_of_what_is_delegated_to(x, n):
    class Broken:
        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def __getattr__(self, name):
            raise (ZeroDivisionError if n else AttributeError)(name)

    def outer():
        yield from Broken()

    found = []
    for act in (lambda g: g.send(3), lambda g: g.throw(ValueError("v"))):
        made = outer()
        next(made)
        try:
            act(made)
        except (ZeroDivisionError, AttributeError, ValueError) as error:
            found.append(type(error).__name__)
    return x, found


@case(with_x(1, 2))
def stop_iteration_that_leaves_a_generator(x, n):
    def inner():
        try:
            yield n
        finally:
            raise StopIteration("inner")

    def outer():
        return (yield from inner())

    made = outer()
    next(made)
    try:
        if n == 1:
            made.close()
        else:
            made.throw(StopIteration("thrown"))
    except RuntimeError as error:
        cause = error.__cause__
        return (
            *(x, str(error), cause is error.__context__, str(cause)),
            type(cause.__context__).__name__,
        )


@case(with_x(1, 2))
def the_value_of_a_generator_is_told_once(x, n):
    def inner():
        yield 1
        return n

    made = inner()
    found = []
    for _ in range(4):
        try:
            found.append(next(made))
        except StopIteration as stop:
            found.append(stop.value)
    return x, found


@case(with_x(1, 2))
def iter_gives_the_object_itself(x, n):
    values = Numbers(n, None)
    return x, iter(values) is values, list(values)


@scenario(lambda state: [(t(2),), (t(3),)])
def iter_of_an_outer_object_is_it(x=None):
    state = Numbers(5, None)

    def program(x):
        return x + next(iter(state)), iter(state) is state

    return program, state
