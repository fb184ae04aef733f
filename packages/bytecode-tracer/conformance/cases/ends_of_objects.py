"""What is told at the end of objects: generators inside `with` or `try`, destructors, callbacks."""

from __future__ import annotations

import time
import weakref

from conformance.declare import case, t, with_x


class Thing:
    def __init__(self, value):
        self.value = value


class Holder:
    def __init__(self, thing):
        self.thing = thing
        self.table = {"thing": thing, "other": 1}


@case(with_x(1, 2))
def called_back(x, n):
    seen = []
    things = [Thing(k) for k in range(n + 1)]
    references = [weakref.ref(thing, lambda _: seen.append(len(things))) for thing in things]
    del things[0]
    return len(seen), [reference() is None for reference in references], x


@case(with_x(1, 2))
def finalized(x, n):
    seen = []
    thing = Thing(n)
    finalizer = weakref.finalize(thing, seen.append, n)
    alive = finalizer.alive
    del thing
    return alive, finalizer.alive, seen, x


def guarded_numbers(log):
    try:
        yield 1
        yield 2
    finally:
        log.append("closed")


def numbers_under_a_lock(log, manager):
    with manager:
        yield from guarded_numbers(log)


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("entered")

    def __exit__(self, *error):
        self.log.append(error[0] is GeneratorExit)


@case(with_x(1, 2))
def generator_deleted(x, n):
    log = []
    running = guarded_numbers(log)
    first = next(running)
    del running
    return list(log), first * x * n


@case(with_x(1, 2))
def loop_left_early(x, n):
    log = []
    for number in guarded_numbers(log):
        if number >= n:
            break
    return list(log), x * number


@case(with_x(1, 2))
def generator_that_ends(x, n):
    log = []
    for number in numbers_under_a_lock(log, Manager(log)):
        x = x + number
    return log, x * n


@case(with_x(1, 2))
def delegating_generator_dropped(x, n):
    log = []
    running = numbers_under_a_lock(log, Manager(log))
    for _ in range(n):
        x = x + next(running)
    running = None
    return list(log), x


LOG = []


@case(with_x(1, 2), then=lambda result: (result, list(LOG)))
def generator_left_by_a_local(x, n):
    running = guarded_numbers(LOG)
    return next(running) * x, len(LOG) * n


@case(with_x(1, 2))
def any_of_a_generator(x, n):
    log = []
    return any(number > n - 1 for number in guarded_numbers(log)), list(log), x


@case(with_x(1, 2))
def generator_dropped_after_a_break(x, n):
    log = []
    running = guarded_numbers(log)
    x = x + next(running)
    time.perf_counter()
    before = list(log)
    del running
    return before, list(log), x * n


class Told:
    alive = 0

    def __init__(self):
        Told.alive += 1

    def __del__(self):
        Told.alive -= 1


def _told():
    for count in (1, 2):
        yield (t(2), [Told() for _ in range(count)], {"one": Told()}, Holder(Told()))


@case(_told)
def destructors_of_what_was_passed(x, items, table, holder):
    before = Told.alive
    items.pop()
    after = Told.alive
    del table["one"]
    holder.thing = None
    holder.table.clear()
    return before - after, before - Told.alive, x


@case(lambda: [(t(2), [Thing(1)]), (t(2), [Told()]), (t(2), [[Told()], 3])])
def cleared_lists(x, items):
    before = Told.alive
    items.clear()
    return before - Told.alive, x + 1


def _with_callbacks():
    for _ in range(2):
        seen = []
        thing = Thing(1)
        items = [thing]
        yield (t(2), items, seen, weakref.ref(thing, lambda _, seen=seen: seen.append("gone")))
        del thing


@case(_with_callbacks)
def callbacks_of_the_caller(x, items, seen, reference):
    items[0] = 5
    return len(seen), reference() is None, x
