"""Named tuples: how they are made, their slices, and classes that change how they act."""

from __future__ import annotations

import collections
import copy
import typing

from conformance.declare import case, t

Pair = collections.namedtuple("Pair", "x y", defaults=(7,))


class Typed(typing.NamedTuple):
    x: typing.Any
    y: int = 2


class Shown(Typed):
    def total(self):
        return self.y


class Items(Pair):
    def __getitem__(self, place):
        return "item", place


class Listed(Pair):
    __slots__ = ()

    def __len__(self):
        return 9

    def __iter__(self):
        return iter([self.x, "iter", 5])

    def __contains__(self, value):
        return value == "yes"

    def __bool__(self):
        return False

    def __reversed__(self):
        return iter([4])


class Texts(Pair):
    def __str__(self):
        return "text"

    def __format__(self, spec):
        return f"formatted {spec}"


class Copied(Pair):
    def __copy__(self):
        return "copied"


class Asking(Pair):
    def __getattr__(self, name):
        return f"asked for {name}"


class Told(Pair):
    def __new__(cls, *args):
        print("new")
        return super().__new__(cls, *args)

    def __init__(self, *args):
        print("init", args)


KINDS = (Pair, Items, Listed, Texts, Copied, Asking, Told)


def said(*functions):
    found = []
    for function in functions:
        try:
            found.append(function())
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found


def used(pair):
    return said(
        lambda: (pair[0], pair[-1:], pair[:], len(pair), list(pair), bool(pair)),
        lambda: (7 in pair, "yes" in pair, [*pair], (lambda *a: a)(*pair)),
        lambda: (repr(pair), str(pair), f"{pair:>3}", f"{pair}", "%s %s" % pair),
        lambda: pair.other,
        lambda: (pair.x, pair.y, pair._fields, Pair.__getitem__(pair, 0)),
        lambda: pair._replace(y=3),
        lambda: pair._asdict(),
        lambda: copy.copy(pair),
        lambda: list(reversed(pair)),
        lambda: [(a, b) for a, b in [pair]],
        lambda: (pair + (1,), pair * 2, pair == (1, 7), hash(pair) == hash((1, 7))),
        lambda: type(pair[0:1]).__name__,
    )


@case(lambda: [(t(2), kind) for kind in KINDS])
def made_in_the_call(x, kind):
    return used(kind(1, 7)), x + 1


@case(lambda: [(t(2), kind(1, 7)) for kind in KINDS])
def given(x, pair):
    first, *rest = pair
    return used(pair), x + 1, first, rest


@case(lambda: [(t(2), kind) for kind in KINDS])
def returned(x, kind):
    pair = kind(x, 7)
    return pair, [pair], pair[1:], pair[::-1]


@case(lambda: [(t(2),)])
def arguments_that_do_not_fit(x):
    return said(
        lambda: Pair(1, 2, x=3),
        lambda: Typed(x, 1, y=4),
        lambda: Pair(1, x=2),
        lambda: Pair(),
        lambda: Pair(1, 2, 3),
        lambda: Pair(1, z=2),
        lambda: Typed(y=1),
        lambda: Pair(y=1, x=x),
    )


def _other_defaults():
    yield (t(2),)
    Pair.__new__.__defaults__ = (8,)
    Typed.__new__.__defaults__ = (9,)
    yield (t(2),)
    Pair.__new__.__defaults__ = (7,)
    Typed.__new__.__defaults__ = (2,)
    yield (t(2),)


@case(_other_defaults)
def defaults_replaced(x):
    return Pair(x), Typed(x), Shown(x).total()


def _other_class():
    plain = Typed.__new__
    yield (t(2),)
    Typed.__new__ = lambda cls, a: plain(cls, a, 50)
    yield (t(2),)
    Typed.__new__ = plain
    Shown.__init__ = lambda self, *args: print("init")
    yield (t(2),)
    del Shown.__init__
    Shown.__getattribute__ = lambda self, name: (
        5 if name == "y" else tuple.__getattribute__(self, name)
    )
    yield (t(2),)
    del Shown.__getattribute__
    yield (t(2),)


@case(_other_class)
def making_replaced(x):
    return Typed(x), Shown(x).total()


def _acts_otherwise():
    pair = Shown(1, 2)
    yield (t(2), pair)
    for name, function in (
        ("__iter__", lambda self: iter([3])),
        ("__bool__", lambda self: False),
        ("__add__", lambda self, other: "sum"),
        ("__getattr__", lambda self, name: name),
    ):
        setattr(Shown, name, function)
        yield (t(2), pair)
        delattr(Shown, name)
        yield (t(2), pair)


@case(_acts_otherwise)
def ways_of_acting_added(x, pair):
    found = [*pair], bool(pair), str(pair), pair == (1, 2), pair + (3,), hasattr(pair, "other")
    made = Shown(x, 1)
    return x, found, len([*made]), bool(made), hasattr(made, "other")
