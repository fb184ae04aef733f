"""Dataclasses, enums, named tuples, exceptions and the like that the program itself defines."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import typing
from typing import ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from conformance.declare import case, with_x

both = with_x(1, 2, 1)


@case(both)
def exceptions_defined_and_caught(x, n):
    class Problem(Exception):
        def __init__(self, code, *rest):
            super().__init__(code, *rest)
            self.code = code

        def __str__(self):
            return f"problem {self.code}"

    class Small(Problem):
        pass

    found = []
    for kind in (Small, Problem, ValueError):
        try:
            raise kind(n, "more")
        except Small as error:
            found.append(("small", str(error), error.args))
        except Problem as error:
            found.append(("problem", error.code, repr(error)))
        except ValueError as error:
            found.append(("value", error.args))
    return found, x


@case(both)
def exception_leaves(x, n):
    class Problem(Exception):
        code = n

    raise Problem("left", n)


@case(both)
def abstract_classes(x, n):
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

        @property
        @abc.abstractmethod
        def name(self): ...

        def double(self):
            return self.area() * 2

    class Square(Shape):
        name = "square"

        def area(self):
            return x * n

    class Half(Shape):
        def area(self):
            return 1

    found = []
    for cls in (Shape, Half):
        try:
            cls()
        except TypeError as error:
            found.append(str(error))
    registered = Shape.register(int)
    checks = isinstance(Square(), Shape), isinstance(3, Shape), issubclass(str, Shape)
    return Square().double(), found, checks, registered, sorted(Shape.__abstractmethods__), Square


@case(both)
def dataclass_defined_inside(x, n):
    @dataclasses.dataclass
    class Point:
        a: int
        b: object = x
        tags: list = dataclasses.field(default_factory=list)
        kind: ClassVar[str] = "point"

        def __post_init__(self):
            self.tags.append(self.a)

        def total(self):
            return self.a + self.b

    one, two = Point(n), Point(a=2, b=n)
    names = [field.name for field in dataclasses.fields(Point)]
    return one, two.total(), names, Point(1, 2) == Point(1, 2), Point, dataclasses.asdict(two)


@case(both)
def dataclass_options(x, n):
    @dataclasses.dataclass(frozen=True, order=True, kw_only=True)
    class Key:
        a: int
        b: int = n

    @dataclasses.dataclass(slots=True)
    class Slotted(object):  # noqa: UP004  # as older code has it
        a: int
        b: int = 3

        def read(self):
            return self.a + self.b

    key = Key(a=1)
    try:
        key.a = 2
    except dataclasses.FrozenInstanceError as error:
        refused = str(error)
    made = Slotted(n)
    return (
        key == Key(a=1),
        hash(key) == hash(Key(a=1)),
        refused,
        made.read(),
        made,
        Slotted.__slots__,
    )


@case(both)
def dataclass_inherited(x, n):
    @dataclasses.dataclass
    class Base:
        a: int = n

    @dataclasses.dataclass
    class Derived(Base):
        b: int = 2

        def grown(self):
            return dataclasses.replace(self, b=self.b + self.a)

    made = Derived(b=5).grown()
    return made.a, made.b, dataclasses.is_dataclass(made), Derived.__match_args__, made


@case(both)
def dataclass_with_wrong_default(x, n):
    try:

        @dataclasses.dataclass
        class Local:
            a: list = []  # noqa: RUF012  # a mutable default of a class

    except ValueError as error:
        return str(error)
    return Local


@case(both)
def named_tuples_defined_inside(x, n):
    Pair = collections.namedtuple("Pair", ["a", "b"], defaults=[n])

    class Typed(NamedTuple):
        a: int
        b: object = None

        def swapped(self):
            return Typed(self.b, self.a)

    class Child(Pair):
        def total(self):
            return self.a + self.b

    one = Pair(1)
    return (
        one,
        one._replace(a=x),
        one._asdict(),
        Typed(n).swapped(),
        Child(2).total(),
        Typed(1, 2) == (1, 2),
    )


@case(both)
def enums_defined_inside(x, n):
    class Color(enum.Enum):
        RED = 1
        BLUE = n + 5

        def shout(self):
            return self.name + "!"

        @property
        def double(self):
            return self.value * 2

        @classmethod
        def default(cls):
            return cls.RED

    found = [Color.RED.shout(), Color.BLUE.double, Color.default() is Color.RED, Color(1).name]
    table = {Color.RED: x, Color.BLUE: n}
    try:
        Color(77)
    except ValueError as error:
        found.append(str(error))
    return found, [c.name for c in Color], len(Color), Color.RED in Color, table[Color.RED], Color


@case(both)
def flags_defined_inside(x, n):
    class Right(enum.Flag):
        READ = enum.auto()
        WRITE = enum.auto()
        BOTH = READ | WRITE

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = n + 1

    mixed = Right.READ | Right.WRITE
    return (
        mixed is Right.BOTH,
        Right.READ in mixed,
        Level.HIGH + 1,
        Level.LOW < Level.HIGH,
        Level(1),
        mixed,
    )


@case(both)
def protocols_and_generics(x, n):
    T = TypeVar("T")

    class Box(Generic[T]):
        def __init__(self, value: T):
            self.value = value

        def read(self) -> T:
            return self.value

    class IntBox(Box[int]):
        pass

    @typing.runtime_checkable
    class Readable(Protocol):
        def read(self): ...

    checks = isinstance(IntBox(1), Readable), isinstance(x, Readable)
    return (
        Box[str](x).read(),
        IntBox(n).read(),
        checks,
        Box.__parameters__ == (T,),
        IntBox.__mro__[1] is Box,
    )


@case(both)
def typed_dict_defined_inside(x, n):
    class Options(TypedDict, total=False):
        a: int
        b: str

    made = Options(a=n)
    return made, type(made), sorted(Options.__annotations__), Options.__total__


@case(both)
def subclasses_of_builtins(x, n):
    class Bag(dict):
        def __missing__(self, key):
            self[key] = n
            return n

    class Items(list):
        def total(self):
            return sum(self)

    bag, items = Bag(a=1), Items([1, n])
    items.append(3)
    return bag["b"], bag, items.total(), items, type(bag) is Bag, Bag, isinstance(items, list)


@case(both)
def totally_ordered(x, n):
    @functools.total_ordering
    class Version:
        def __init__(self, number):
            self.number = number

        def __eq__(self, other):
            return self.number == other.number

        def __lt__(self, other):
            return self.number < other.number

    one, other = Version(1), Version(n)
    return one <= other, one > other, other >= one, sorted([Version(3), other, one])[0] is not None


@case(both)
def abstract_class_with_a_hook(x, n):
    class Runs(abc.ABC):
        @classmethod
        def __subclasshook__(cls, other):
            return any("run" in base.__dict__ for base in other.__mro__)

    class Local:
        def run(self):
            return n

    return (
        issubclass(Local, Runs),
        isinstance(Local(), Runs),
        isinstance(x, Runs),
        issubclass(int, Runs),
    )
