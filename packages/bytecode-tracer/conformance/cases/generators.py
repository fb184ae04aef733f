"""Generators: lazy, passed around, `send`, `throw`, `close`."""

from __future__ import annotations

from conformance.declare import case, t, with_x


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
