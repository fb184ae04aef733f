"""Structural pattern matching."""

from __future__ import annotations

import dataclasses
import enum

from conformance.declare import case, only, t, with_x


@dataclasses.dataclass
class Point:
    x: object
    y: object = 0


class Shape(enum.Enum):
    ROUND = 1
    SQUARE = 2


class Positional:
    __match_args__ = ("first", "second")

    def __init__(self, first, second):
        self.first, self.second = first, second


@case(with_x(0, 1, 2, "a", None, True))
def literals(x, value):
    match value:
        case 0:
            return x
        case 1 | 2:
            return x * 2
        case "a":
            return x + 1
        case None:
            return None
        case _:
            return "other"


@case(only([], [1], [1, 2], [1, 2, 3], (4, 5), "ab", {1: 2}))
def sequences(value):
    match value:
        case []:
            return "empty"
        case [a]:
            return a
        case [a, b]:
            return b, a
        case [a, *rest]:
            return a, rest
        case _:
            return "no sequence"


@case(only([1, 2, 3], [1, [2, 3]], [1, [2]], [0, 0]))
def nested_sequences(value):
    match value:
        case [a, [b, c]]:
            return a, b, c
        case [first, *_, last]:
            return first, last


@case(only({"kind": "a", "n": 1}, {"kind": "b"}, {"kind": "a"}, {}, {"n": 3, "z": 4}))
def mappings(value):
    match value:
        case {"kind": "a", "n": n}:
            return n
        case {"kind": kind, **rest}:
            return kind, rest
        case {"n": int(n), **rest}:
            return n, rest
        case {}:
            return "any mapping"


@case(lambda: [(Point(1, 2),), (Point(0),), (Point(t(2), 1),), (Point(1, 5),), (3,)])
def classes(value):
    match value:
        case Point(x=0, y=y):
            return "zero", y
        case Point(1, 2):
            return "one two"
        case Point(x, y):
            return x, y
        case _:
            return "no point"


@case(with_x(1, 1.5, "a", [1], True, None))
def builtin_classes(x, value):
    match value:
        case bool():
            return x, "bool"
        case int(n):
            return x * n
        case float() as f:
            return x + f
        case str(s):
            return s
        case list():
            return "list"
    return "none"


@case(with_x(1, 5, -1))
def guards(x, n):
    match n:
        case k if k > 3:
            return x * k
        case k if k < 0:
            return x - k
        case _:
            return x


@case(only(Shape.ROUND, Shape.SQUARE, 1))
def dotted_names(value):
    match value:
        case Shape.ROUND:
            return "round"
        case Shape.SQUARE:
            return "square"
    return "none"


@case(lambda: [(Positional(1, 2),), (Positional(2, 1),), (Positional(t(2), 3),)])
def match_args(value):
    match value:
        case Positional(1, second):
            return second
        case Positional(first, 1):
            return first
        case Positional(first, second):
            return first, second


@case(lambda: [(t(2, 3),), (t(4),), (t(1, 2, 3),), (t(2, 3),)])
def on_shape(x):
    match x.shape:
        case (n,):
            return x * n
        case (n, m):
            return x.reshape(m, n)
        case (_, *rest):
            return rest, x


@case(only([("add", 1), ("mul", 2)], [("neg",)], [("stop", 0), ("add", 5)]))
def interpreter(program):
    total = t(2)
    for step in program:
        match step:
            case ("add", n):
                total = total + n
            case ("mul", n):
                total = total * n
            case ("neg",):
                total = -total
            case ("stop", _):
                break
    return total


@case(with_x((1, "a"), ("a", 1), (1, 1)))
def or_patterns_with_names(x, pair):
    match pair:
        case (int(n), str(s)) | (str(s), int(n)):
            return x * n, s
        case (a, b) as whole:
            return whole, a + b


@case(with_x(1, 7))
def no_match_falls_through(x, n):
    match n:
        case 1:
            x = x + 1
    return x


@case(with_x(1 + 2j, -1, 1.5, b"x"))
def negative_complex_and_bytes(x, value):
    match value:
        case 1 + 2j:
            return "complex"
        case -1:
            return x
        case 1.5:
            return x * 2
        case b"x":
            return "bytes"


@case(lambda: [(Point(1, 2), 3), ("a", 1), (Point("a", 2), 3)])
def too_many_positional_patterns(value, n):
    match value:
        case Point(a, b, c):
            return a, b, c
    return n
