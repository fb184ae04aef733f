"""`yield from`: generators that hand on to other generators, iterators and objects."""

from __future__ import annotations

from conformance.declare import case, scenario, t, with_x


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


@case(with_x(1, 2, 3, 10, 4))
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
def iter_gives_the_object_itself(x, n):
    values = Numbers(n, None)
    return x, iter(values) is values, list(values)


@scenario(lambda state: [(t(2),), (t(3),)])
def iter_of_an_outer_object_is_it(x=None):
    state = Numbers(5, None)

    def program(x):
        return x + next(iter(state)), iter(state) is state

    return program, state
