"""Texts, numbers and containers of classes that inherit from them, given to what C defines.

What C asks of such a value, what it takes as it is stored, and how it names its class in errors.
"""

from __future__ import annotations

import itertools
import math
import operator

from conformance.declare import case


class Shown(str):
    def __str__(self):
        return "shown"


class Formatted(str):
    def __format__(self, spec):
        return f"formatted as {spec}"


class Equal(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Plain(int):
    pass


class Count(int):
    def __str__(self):
        return "a count"

    def __index__(self):
        return 7


class Half(float):
    def __format__(self, spec):
        return "a half"


class Third(float):
    def __index__(self):
        return 2


class Letters(str):
    def __iter__(self):
        return iter("zz")

    def __getitem__(self, place):
        return "item"


class Listed(list):
    def __iter__(self):
        return iter(["i", "j"])


class Pair(tuple):
    def __iter__(self):
        return iter(["i", "j"])


class Table(dict):
    def __getitem__(self, key):
        return "got"


class Measure:
    def __float__(self):
        return 2.5

    def __str__(self):
        return "a measure"

    def __repr__(self):
        return "Measure()"


VALUES = (
    *(Shown("t"), Formatted("f"), Equal("e"), Plain(5), Count(1), Half(1.5), Third(1.0)),
    *(Letters("c"), Listed(["x"]), Pair(("x",)), Table(a=1), Measure()),
)


def numbered():
    return [(number,) for number in range(len(VALUES))]


def asked(functions, value):
    found = []
    for function in functions:
        try:
            result = function(value)
        except (TypeError, ValueError, AttributeError) as error:
            result = str(error)
        found.append((result, type(result).__name__))
    return found


@case(numbered)
def formats(number):
    value = VALUES[number]
    functions = (
        lambda v: "{}".format(v),  # noqa: UP032  # str.format is what is tested
        lambda v: "{0} and {name!r:>4}".format("a", name=v),  # noqa: UP032  # str.format is what is tested
        lambda v: f"{v}, {v!s:>3}",
        lambda v: "%s" % (v,),
        lambda v: "{:>{width}}".format(v, width=4),
        lambda v: "{a}".format_map(v),
        format,
        lambda v: "%s" % v,
        lambda v: "%(a)s" % v,
    )
    return asked(functions, value)


@case(numbered)
def methods_of_texts(number):
    value = VALUES[number]
    functions = (
        lambda v: "-".join([v, "a"]),
        lambda v: "-".join(v),
        lambda v: "abc".replace("b", v),
        lambda v: "abc".startswith(v),
        lambda v: "abc".split(v),
        lambda v: "abc".zfill(v),
        lambda v: "abc".center(v),
        lambda v: "abc".count(v),
        lambda v: "abc".strip(v),
    )
    return asked(functions, value)


@case(numbered)
def indices(number):
    value = VALUES[number]
    functions = (
        lambda v: [1, 2, 3][v],
        lambda v: "abc"[v],
        lambda v: (1, 2, 3)[v:],
        lambda v: list(itertools.islice([1, 2, 3], v)),
        lambda v: list(range(v)),
        lambda v: [1] * v,
        operator.index,
        hex,
        math.factorial,
        lambda v: math.gcd(v, 2),
        lambda v: list(enumerate("a", v)),
    )
    return asked(functions, value)


@case(numbered)
def searches(number):
    value = VALUES[number]
    functions = (
        lambda v: ["q", "r"].count(v),
        lambda v: ["q", "r"].index(v),
        lambda v: ("q", "r").count(v),
        lambda v: ("q", "r").index(v),
        lambda v: v in ["q"],
    )
    return asked(functions, value)


@case(numbered)
def unpacked(number):
    value = VALUES[number]
    functions = (
        lambda v: [*v],
        lambda v: {**v},
        lambda v: (lambda *args: args)(*v),
        lambda v: (lambda **named: named)(**v),
        lambda v: list(reversed(v)),
        dict,
        bytes,
    )
    return asked(functions, value)
