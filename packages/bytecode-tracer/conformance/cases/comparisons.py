"""What the interpreter asks objects that are compared, hashed, sorted or taken for numbers."""

from __future__ import annotations

import abc
import copy
import operator
import time

import torch

from conformance.declare import case, t, with_x


class Abstract(metaclass=abc.ABCMeta):
    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        self.log.append("abstract")
        return NotImplemented

    __hash__ = None


class Virtual:
    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        self.log.append("virtual")
        return NotImplemented

    def __radd__(self, other):
        self.log.append("radd")
        return 5

    __hash__ = None


Abstract.register(Virtual)


@case(with_x(0, 1))
def virtual_subclasses_are_not_asked_first(x, n):
    log = []
    pair = [Abstract(log), Virtual(log)]
    return x, pair[n] == pair[1 - n], log


def cell_of(*value):
    def inner():
        return held

    if value:
        held = value[0]
    return inner.__closure__[0]


@case(with_x(2, 3, "text"))
def cells_compare_as_what_they_hold(x, n):
    one, other, empty = cell_of(n), cell_of(3), cell_of()
    found = [one == other, empty == cell_of(), empty != one, empty < one, one > empty]
    if not isinstance(n, str):
        found.append(one < other)
    return x, found


@case(with_x(0, 1))
def hashes_are_cut_as_the_interpreter_does(x, n):
    class Proxy:
        def __hash__(self):
            return (hash("halibut"), 2**70 + 5)[n]

        def __eq__(self, other):
            return other == "halibut"

    return x, len({"halibut", Proxy()}), hash(Proxy()) == Proxy().__hash__()


class Anything:
    def __init__(self, equal):
        self.equal = equal

    def __eq__(self, other):
        return other == self.equal

    def __hash__(self):
        return hash(self.equal)


@case(with_x(2, 7, "no"))
def searching_constants_for_an_object(x, n):
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    wanted = Anything(n)
    return (
        x,
        wanted in range(5),
        wanted in (1, 2),
        wanted in frozenset((2, 3)),
        Always(11) in range(3),
    )


@case(with_x(7, -3))
def int_subclass_that_defines_index(x, n):
    class Mine(int):
        def __index__(self):
            return int(self) + 1

    made = Mine(n)
    return x, operator.index(made), made.__index__(), list(range(10))[made], hex(made)


@case(with_x(1.5, 2.0, -0.0))
def parts_of_subclasses_of_numbers(x, n):
    class Complex(complex):
        pass

    class Real(float):
        pass

    class Whole(int):
        pass

    made = Complex(n, 2.5)
    return x, made.real, made.imag, Real(n).real, Whole(n).numerator, Whole(n).denominator


@case(with_x(0.1, 0.3, 1))
def sums_of_floats(x, n):
    values = [n] * 10
    try:
        text = sum(["a"], "")
    except TypeError as error:
        text = str(error)
    return x + sum(values), sum(values), sum([1.0, 10e100, 1.0, -10e100]), sum([1, n, x]), text


@case(with_x(0, 1, 2, 3))
def extremes_called_wrongly(x, n):
    calls = (
        lambda: max(),
        lambda: min(1, 2, default=None),
        lambda: max([], default=x),
        lambda: min([1], other=3),
    )
    try:
        return calls[n]()
    except TypeError as error:
        return x, str(error)


@case(with_x(0, 1))
def truth_of_what_an_object_says(x, n):
    class Asked:
        def __init__(self, number):
            self.number = number

        def __bool__(self):
            return self.number > 0

    return x + 1 if Asked(n) else x - 1


@case(lambda: [(t(2), time.gmtime(0)), (t(2), time.gmtime(86400 * 400))])
def fields_beside_the_elements_of_a_tuple(x, when):
    copied = copy.copy(when)
    return x + when.tm_year, when.tm_zone, when.tm_gmtoff, len(when), copied.tm_zone, copied == when


@case(with_x(1, 2))
def tuples_with_fields_made_here(x, n):
    made = torch.return_types.max((x, n))
    when = time.struct_time([n] * 11)
    return made.values, made.indices, when.tm_zone, when[0]


@case(lambda: [(t(3, 2),), (t(2, 3),)])
def parts_of_tuples_with_fields_are_plain(x):
    found = x.max(0)
    parts = found[:1], found[::-1], found[:], found + (1,)
    return x, parts, [type(each) for each in parts]


@case(lambda: [(t(2), [3, 1, 2] * 40), (t(2), [5, 9, 2] * 40), (t(2), [6, 9, 1] * 40)])
def many_numbers_compared(x, numbers):
    return x * sorted(numbers)[0], sorted(numbers, reverse=True)[0]


@case(with_x(0, 1, 2, 3))
def lists_changed_while_they_are_sorted(x, n):
    values = [3, 1, 2]
    acts = (
        lambda: values.append(4),
        lambda: values.extend([]),
        lambda: len(values),
        lambda: values.insert(0, 7),
    )
    seen = []

    def key(value):
        acts[n]()
        seen.append(list(values))
        return value

    try:
        values.sort(key=key)
    except ValueError as error:
        return x, str(error), values, seen
    return x, values, seen
