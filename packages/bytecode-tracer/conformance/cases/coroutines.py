"""Coroutines and asynchronous generators, driven by hand."""

from __future__ import annotations

from conformance.declare import case, with_x


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
