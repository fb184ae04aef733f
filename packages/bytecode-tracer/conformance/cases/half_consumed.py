"""Generators and iterators that leave the program half consumed, and go on outside."""

from __future__ import annotations

import torch

from conformance.declare import case, t, with_x


def count_up(n, log=None):
    for i in range(n):
        if log is not None:
            log.append(i)
        yield i


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


def noting(log):
    try:
        yield 1
    finally:
        log.append("closed")


def shown_first(generator, values, log):
    """Breaks in a comprehension, below the frame that holds the generator."""
    log.append([float(value.sum().item()) for value in values])
    return next(generator)


@case(lambda: [([t(2), t(2)], []), ([t(3), t(1)], ["before"])])
def generator_dropped_after_a_break_in_an_inner_loop(values, log):
    generator = noting(log)
    first = shown_first(generator, values, log)
    return values[0] + first
