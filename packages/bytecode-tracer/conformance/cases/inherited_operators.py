"""Operators of classes that inherit from numbers, texts and sequences, and define some themselves.

Which operand Python asks first follows from the slots of both classes: a class with a method of
its own for `+` from the right is asked as numbers are, also for what it inherits.
"""

from __future__ import annotations

import operator

from conformance.declare import case


class Text(str):
    def __add__(self, other):
        return Text(f"<{str.__add__(self, other)}>")


class Behind(str):
    def __radd__(self, other):
        return f"behind {other!r}"


class PlainText(str):
    pass


class ListBehind(list):
    def __radd__(self, other):
        return f"list behind {other!r}"


class PlainList(list):
    pass


class TupleBehind(tuple):
    def __radd__(self, other):
        return f"tuple behind {other!r}"

    def __rmul__(self, other):
        return f"tuple behind {other!r} times"


class PlainTuple(tuple):
    pass


class Number(int):
    def __add__(self, other):
        return 100


class NumberBehind(int):
    def __radd__(self, other):
        return 200


class Times(int):
    def __mul__(self, other):
        return 300

    def __index__(self):
        return 3


class Half(float):
    pass


class Bytes(bytes):
    pass


VALUES = (
    *("a", Text("t"), Behind("b"), PlainText("p"), [1], ListBehind([2]), PlainList([3]), (4,)),
    *(TupleBehind((5,)), PlainTuple((6,)), 2, True, Number(3), NumberBehind(1), Times(2)),
    *(Half(1.5), b"c", Bytes(b"d"), None),
)


def again(value):
    """A value made in the traced code."""
    return value if value is None else type(value)(value)


def ask(function, left, right):
    try:
        found = function(left, right)
    except (TypeError, ValueError) as error:
        return str(error)
    return found, type(found).__name__, found is left, found is right


def numbered():
    return [(number,) for number in range(len(VALUES))]


@case(numbered)
def sums(number):
    return [ask(operator.add, VALUES[number], right) for right in VALUES]


@case(numbered)
def sums_of_new_values(number):
    return [ask(operator.add, again(VALUES[number]), again(right)) for right in VALUES]


@case(numbered)
def sums_in_place(number):
    return [ask(operator.iadd, again(VALUES[number]), again(right)) for right in VALUES]


@case(numbered)
def products(number):
    return [ask(operator.mul, VALUES[number], right) for right in VALUES]


@case(numbered)
def products_of_new_values(number):
    return [ask(operator.mul, again(VALUES[number]), again(right)) for right in VALUES]


@case(numbered)
def products_in_place(number):
    return [ask(operator.imul, again(VALUES[number]), again(right)) for right in VALUES]


@case(numbered)
def formats(number):
    return [ask(operator.mod, again(VALUES[number]), again(right)) for right in VALUES]


@case(numbered)
def searches(number):
    return [ask(operator.contains, again(VALUES[number]), again(item)) for item in VALUES]
