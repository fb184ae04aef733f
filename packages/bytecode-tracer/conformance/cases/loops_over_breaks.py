"""Numbers that change in loops whose body breaks the graph, and from call to call."""

from __future__ import annotations

import time

import torch

from conformance.declare import case, scenario, t

BREAKS_MEANT = True


def _counts():
    return [(t(2), n) for n in (3, 12, 0, 1, 20)]


@case(_counts)
def loop_variable(x, n):
    for i in range(n):
        time.sleep(0)
        x = x + i
    return x


@case(_counts)
def enumerated(x, n):
    for i, v in enumerate([0.5] * n, 2):
        time.sleep(0)
        x = x + i * v
    return x


@case(_counts)
def enumerated_over_a_list_that_grows(x, n):
    kept = [1.0]
    for i, v in enumerate(kept):
        time.sleep(0)
        if i < n:
            kept.append(v + i)
        x = x + v
    return x, kept


@case(_counts)
def accumulators(x, n):
    whole, part, largest = 0, 0.5, -1
    for i in range(n):
        whole += i
        part *= 1.25
        largest = max(largest, i % 7)
        time.sleep(0)
        x = x + whole - part
    return x, whole, part, largest


@case(_counts)
def counted_while(x, n):
    i = 0
    while i < n:
        i += 1
        time.sleep(0)
        x = x * 0.5 + i
    return x, i


@case(_counts)
def parity_and_slices(x, n):
    kept = []
    for i in range(n):
        time.sleep(0)
        kept.append(x + i if i % 2 else x[: i % 3])
    return kept


@case(_counts)
def counters_in_containers(x, n):
    table, row = {"n": 0}, [0.0]
    for i in range(n):
        table["n"] += 1
        row[0] += 0.5 * i
        time.sleep(0)
        x = x + table["n"] - row[0]
    return x, table, row


@case(_counts)
def zipped_and_nested(x, n):
    for a, b in zip(range(n), range(5, 50)):
        for c in (1, 2):
            time.sleep(0)
            x = x + a * b - c
    return x


@case(_counts)
def letters(x, n):
    text = ""
    for letter in "abcdefghijklmnop"[:n]:
        time.sleep(0)
        text += letter
        x = x + 1
    return x, text


@scenario(lambda state: [(t(2),)] * 12)
def numbers_that_last():
    class Counter:
        steps = 0

        def __init__(self):
            self.rate = 1.0

    made, table, row = Counter(), {"n": 0}, [0]
    seen = 0

    def program(x):
        nonlocal seen
        seen += 1
        made.rate *= 0.5
        made.steps += 2
        table["n"] += 3
        row[0] += 4
        return x * made.rate + seen + made.steps + table["n"] - row[0]

    return program, (made, table, row)


@case(lambda: [(t(2), 2), (t(2), 9), (t(2), 14), (t(2), 5)])
def lists_that_only_grow(x, n):
    made, pairs = [], []
    same = made
    for k in range(n):
        made.append(x * k)
        time.sleep(0)
        pairs.extend((k, x + k))
        pairs += [len(pairs)]
    return made, pairs, same is made


@case(lambda: [(t(2), 2), (t(2), 9), (t(2), 14), (t(2), 5)])
def lists_that_grow_and_are_read(x, n):
    made = [x]
    for k in range(n):
        made.append(k)
        time.sleep(0)
        if k % 5 == 4:
            made.insert(0, made[-1])
            time.sleep(0)
        made.extend(made[:1])
        if k == 7:
            made.clear()
    return made, len(made)


@case(lambda: [(t(2), 2), (t(2), 9), (t(2), 14), (t(2), 5)])
def lists_that_grow_into_themselves(x, n):
    made, other = [], [1]
    for k in range(n):
        made.append(other)
        other.append(k)
        time.sleep(0)
        other.append(made)
        time.sleep(0)
        other.pop()
    return made, other, [each is other for each in made]


@case(lambda: [(t(2), [], 3), (t(2), [1], 9), (t(2), [1, 2], 12), (t(2), [3], 3)])
def lists_of_the_caller_that_grow(x, log, n):
    for k in range(n):
        log.append(k)
        time.sleep(0)
    log.append(x)


@case(lambda: [(t(2), 3), (t(2), 9), (t(2), 12), (t(2), 3)])
def comprehensions_over_a_break(x, n):
    return [x * k + (time.sleep(0) or 1) for k in range(n)], [*map(lambda k: k + n, range(n))]


def _same(value):
    return value


class _Called:
    def run(self, function, value):
        return function(value)


class _CalledBySuper(_Called):
    def run(self, function, value):
        return super().run(function, value)


_RISKY = (torch.neg, _same, torch.neg, torch.sum)
"""Of bools, the negation fails in torch itself."""


def _bools():
    return [(t(2),), (t(2) > 0,), (t(3) > 0,), (t(2),)]


@case(_bools)
def set_in_a_handler_of_a_loop(x):
    for number, function in enumerate(_RISKY):
        try:
            found = function(x)
        except RuntimeError as error:
            message, at = str(error)[:8], number
    return found, locals().get("message"), locals().get("at")


@case(_bools)
def appended_over_a_handler(x):
    found = []
    for function in _RISKY:
        try:
            found.append(function(x))
        except RuntimeError as error:
            found.append(type(error).__name__)
    return found


@case(_bools)
def called_by_super_over_a_handler(x):
    found = []
    called = _CalledBySuper()
    for function in _RISKY:
        with torch.no_grad():
            try:
                found.append(called.run(function, x))
            except RuntimeError:
                found.append(torch.is_grad_enabled())
                continue
            finally:
                last = len(found)
        found.append(last)
    return found


@case(_bools)
def tried_again(x):
    tries = []
    while True:
        try:
            made = _RISKY[len(tries)](x)
            if len(tries) > 2:
                break
            tries.append(made)
        except RuntimeError:
            tries.append(None)
            failed = len(tries)
    return made, tries, locals().get("failed")
