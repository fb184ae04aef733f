"""Classes made in the traced code from numbers that change between the calls."""

from __future__ import annotations

import collections
import dataclasses
import enum

from conformance.declare import case, with_x


@case(with_x(3, 4, 5, 3))
def attributes(x, n):
    class Layer:
        size = n

        def double(self):
            return self.size * 2

    Layer.late = n + 1
    return x * Layer().double() + Layer.late, Layer.size


@case(with_x(3, 4, 5, 3))
def members_of_an_enum(x, n):
    class Kind(enum.Enum):
        FIRST = n
        SECOND = n + 1

    return x * Kind.FIRST.value, Kind(n + 1).name


@case(with_x(3, 4, 5, 3))
def members_that_are_numbers(x, n):
    class Kind(enum.IntEnum):
        FIRST = n
        SECOND = enum.auto()

    return x * Kind.FIRST, Kind.SECOND + 0, [int(kind) for kind in Kind]


@case(with_x(3, 4, 8, 3))
def flags(x, n):
    class Flags(enum.Flag):
        FIRST = n
        SECOND = 16

    return x * Flags.FIRST.value, (Flags.FIRST | Flags.SECOND).value


@case(with_x(3, 4, 5, 1))
def fields(x, n):
    @dataclasses.dataclass(order=True)
    class Point:
        first: int = n
        second: float = dataclasses.field(default=n * 2)

    return x * Point().first, Point(2) < Point(), dataclasses.asdict(Point())


@case(with_x(3, 4, 5, 3))
def defaults_of_a_named_tuple(x, n):
    Pair = collections.namedtuple("Pair", "first second", defaults=(n,))
    return x * Pair(1).second, tuple(Pair(2))


@case(with_x(3, 4, 5, 3))
def containers_and_properties(x, n):
    class Holder:
        table = {"n": n}
        items = [n, n + 1]
        pair = (n,)

        @property
        def value(self, start=n):
            return start

    Holder.items.append(n)
    return x * Holder().value, Holder.table, Holder.items, Holder.pair


@case(with_x(3, 4, 5, 3))
def keywords_of_the_class(x, n):
    class Base:
        def __init_subclass__(cls, factor=1):
            cls.factor = factor * 2

    class Derived(Base, factor=n):
        pass

    return x * Derived.factor, Derived.factor


@case(with_x(3, 4, 5, 3), then=lambda made: (made[0].size, made[1]))
def given_back(x, n):
    class Layer:
        size = n

    return Layer, x + 1


@case(with_x(3, 2, 5, 3))
def slots_and_documentation(x, n):
    class Slotted:
        __slots__ = ("value",)
        __doc__ = f"of {n}"
        size = n

        def __init__(self):
            self.value = self.size

    return x * Slotted().value, Slotted.__doc__
