"""Counters of the caller's: `itertools.count` objects that give names and numbers."""

from __future__ import annotations

import itertools

import torch

from conformance.declare import case, only, scenario, t


def _sets(_state=None):
    return [(t(2),), (t(3, 2),), (t(2, start=2),), (t(2),), (t(3),)]


@scenario(_sets)
def numbers_of_objects():
    class Node:
        numbers = itertools.count()

        def __init__(self, value):
            self.number = next(self.numbers)
            self.value = value

    def program(x):
        return [Node(x).number, Node(x + 1).number], x * 2

    return program, Node.numbers


@scenario(_sets)
def number_in_the_graph():
    steps = itertools.count(5)

    def program(x):
        return x * next(steps) + next(steps)

    return program, steps


@scenario(_sets)
def names_by_a_counter():
    names = itertools.count(1)

    def program(x):
        return {f"{kind}{next(names)}": x + 1 for kind in ("layer", "head")}

    return program, names


@scenario(_sets)
def decided_by_a_counter():
    steps = itertools.count()

    def program(x):
        if next(steps) % 3 == 0:
            return x.sum()
        return x * 2

    return program, steps


@scenario(lambda _state=None: [(t(2),)] * 5)
def advanced_elsewhere_too():
    steps = itertools.count()

    def program(x):
        found = next(steps), x + 1
        return found

    def drive(x):
        next(steps)
        return program(x)

    return drive, steps


@scenario(_sets)
def zipped_with_a_counter():
    steps = itertools.count(-2)

    def program(x):
        return [(number, x + number) for number, _ in zip(steps, "abc")], next(steps)

    return program, steps


@scenario(_sets)
def of_other_steps():
    halves, threes, big = itertools.count(0.5), itertools.count(0, 3), itertools.count(1 << 62)

    def program(x):
        return x + next(halves), next(threes), next(big)

    return program, (halves, threes, big)


@scenario(_sets)
def before_and_after_a_break():
    steps = itertools.count()

    def program(x):
        first = next(steps)
        print("at", first)
        return x + next(steps), first

    return program, steps


@scenario(lambda _state=None: [(t(2),), (t(3),), (None,), (t(2),)])
def before_an_error():
    steps = itertools.count()

    def program(x):
        number = next(steps)
        return x + number

    return program, steps


@case(only(itertools.count(), itertools.count(7), itertools.count(3, 2)))
def as_an_argument(numbers):
    return next(numbers), numbers, [next(numbers) for _ in range(2)]


@scenario(lambda _state=None: [(t(2, grad=True),), (t(3, grad=True),), (t(2, grad=True),)])
def function_of_autograd_made_in_the_call():
    def program(x):
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                return value * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2

        return Double.apply(x)

    return program


@scenario(_sets)
def looked_at_by_the_caller():
    steps = itertools.count()

    def program(x):
        return x + 1, next(steps), repr(steps)

    return program, steps
