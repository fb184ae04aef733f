"""Enumerations and other classes that a call defines, in what follows a break."""

from __future__ import annotations

import enum
import time
import typing

import torch

from conformance.declare import case, t

BREAKS_MEANT = True


def _sets():
    return [(t(2), n) for n in (0, 1, 2, 0, 5)]


@case(_sets)
def members(x, n):
    class Kind(enum.Enum):
        A = 1
        B = 2
        ALSO = 1

    kind = Kind.A if n % 2 else Kind.B
    time.sleep(0)
    shown = repr(kind), str(kind), kind.name, f"{kind}", [each.name for each in Kind]
    same = kind is Kind.A, Kind.ALSO is Kind.A, kind == Kind.B, Kind(2) is kind, Kind["A"] is kind
    return x + kind.value, shown, same, len(Kind), kind in Kind, hash(kind) == hash(Kind.B)


@case(_sets)
def values_that_change(x, n):
    class Kind(enum.Enum):
        A = n
        B = n + 1

    kind = Kind.B
    time.sleep(0)
    return x + kind.value + Kind.A.value, Kind(n).name


@case(_sets)
def values_of_other_types(x, n):
    class Kind(enum.Enum):
        A = (1, 1.0, True)[n % 3]
        B = "b"

    time.sleep(0)
    return x * Kind.A.value, Kind.A.value, type(Kind.A.value).__name__


@case(_sets)
def names_that_change(x, n):
    names = ("A", "B") if n % 2 else ("B", "A", "C")
    kinds = enum.Enum("Kinds", names)
    first = next(iter(kinds))
    time.sleep(0)
    return x + first.value, first.name, len(kinds), kinds.B.value, hasattr(kinds, "C")


@case(_sets)
def members_that_change(x, n):
    class Kind(enum.Enum):
        A = 1
        B = 2

    if n == 1:
        Kind.A.extra = 5
    if n == 2:
        Kind.A._value_ = 7
    time.sleep(0)
    return x + Kind.A.value, getattr(Kind.A, "extra", None)


@case(_sets)
def changed_after_the_break(x, n):
    class Kind(enum.Enum):
        A = 1

    time.sleep(0)
    Kind.A.extra = n
    time.sleep(0)
    return x + Kind.A.extra


@case(_sets)
def numbers(x, n):
    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 10

    level = Level.LOW if n else Level.HIGH
    time.sleep(0)
    return x + level, level < Level.HIGH, level + 1, [0] * level, max(Level), level == 1


@case(_sets)
def flags(x, n):
    class Flag(enum.Flag):
        A = enum.auto()
        B = enum.auto()
        C = enum.auto()

    flag = Flag.A | (Flag.B if n % 2 else Flag.C)
    time.sleep(0)
    parts = Flag.A in flag, Flag.B in flag, (flag & Flag.A) is Flag.A, bool(flag & Flag.B)
    return x + flag.value, parts, [each.name for each in flag], flag | Flag.B == ~Flag.C, str(flag)


@case(_sets)
def texts(x, n):
    class Mode(str, enum.Enum):
        SUM = "sum"
        MEAN = "mean"

    mode = Mode.SUM if n % 2 else Mode.MEAN
    time.sleep(0)
    return getattr(x, mode.value)(), mode == "sum", mode.upper(), {"sum": 1}.get(mode), "-" + mode


@case(_sets)
def methods(x, n):
    class Op(enum.Enum):
        ADD = "+"
        SUB = "-"

        def run(self, y):
            return y + n if self is Op.ADD else y - n

        @property
        def other(self):
            return Op.SUB if self is Op.ADD else Op.ADD

        @classmethod
        def first(cls):
            return cls.ADD

        @staticmethod
        def twice(y):
            return y * 2

        def __str__(self):
            return f"<{self.value}>"

    op = Op.SUB
    time.sleep(0)
    return op.run(x), op.other.run(x), Op.first() is Op.ADD, Op.twice(x), str(op), f"{op.other}"


@case(_sets)
def parts_of_members(x, n):
    class Planet(enum.Enum):
        EARTH = (1.0, 2)
        MARS = (0.5, n)

        def __init__(self, mass, moons):
            self.mass = mass
            self.moons = moons

        @property
        def both(self):
            return self.mass + self.moons

    planet = Planet.MARS
    time.sleep(0)
    return x * planet.both + Planet.EARTH.mass, Planet((1.0, 2)).name


@case(_sets)
def as_keys(x, n):
    class Kind(enum.Enum):
        A = 1
        B = 2
        C = 3

    table = {Kind.A: x, Kind.B: x * 2}
    if n % 2:
        table[Kind.C] = x * 3
    time.sleep(0)
    found = [key.name for key in table], len(table), Kind.C in table
    table[Kind.C] = x + n
    return table[Kind.B] + table[Kind.C], found, table.get(Kind.A), [*table] == [*Kind]


@case(_sets)
def in_sets_and_tuples(x, n):
    class Kind(enum.Enum):
        A = 1
        B = 2

    group, pair = {Kind.A}, (Kind.A, Kind.B if n % 2 else Kind.A)
    time.sleep(0)
    return x + len(group), Kind.A in group, pair[1] is Kind.B, pair.index(Kind.A), Kind.B in group


@case(_sets)
def of_two_classes(x, n):
    def made():
        class Kind(enum.Enum):
            A = 1

        return Kind

    one = made()
    other = made() if n % 2 else one
    time.sleep(0)
    return (
        x + one.A.value,
        one is other,
        one.A is other.A,
        one.A == other.A,
        {one.A: 1}.get(other.A),
    )


@case(_sets)
def states_in_a_loop(x, n):
    class State(enum.Enum):
        UP = 1
        DOWN = -1

    state, seen = State.UP, []
    for _ in range(n + 3):
        seen.append(state)
        state = State.DOWN if state is State.UP else State.UP
        time.sleep(0)
        x = x + state.value
    return x, [each.name for each in seen], seen.count(State.UP)


@case(_sets)
def matched(x, n):
    class State(enum.Enum):
        UP = 1
        DOWN = -1

    state = State.UP if n % 2 else State.DOWN
    time.sleep(0)
    match state:
        case State.UP:
            return x + 1
        case State.DOWN:
            return x - 1


@case(_sets)
def of_tensors(x, n):
    class Kind(enum.Enum):
        A = x
        B = n

    time.sleep(0)
    return Kind.A.value + Kind.B.value


@case(_sets)
def with_a_missing_value(x, n):
    class Kind(enum.Enum):
        A = 1

        @classmethod
        def _missing_(cls, value):
            return cls.A if value == n else None

    time.sleep(0)
    try:
        return x + Kind(5).value
    except ValueError as error:
        return str(error)


@case(_sets)
def of_an_instance(x, n):
    class Holder:
        class Kind(enum.Enum):
            A = 1
            B = 2

        def __init__(self, kind):
            self.kind = kind

    holder = Holder(Holder.Kind.B if n else Holder.Kind.A)
    time.sleep(0)
    holder.kind, before = Holder.Kind.A, holder.kind
    return x + before.value, holder.kind is before, type(before) is Holder.Kind


@case(_sets)
def returned(x, n):
    class Kind(enum.Enum):
        A = 1
        B = 2

    time.sleep(0)
    found = Kind.B if n else Kind.A
    return x + 1, found.name, [found is each for each in Kind], type(found) is Kind


@case(_sets)
def told_of_subclasses(x, n):
    class Base:
        known = []

        def __init_subclass__(cls, scale=1, **options):
            super().__init_subclass__(**options)
            cls.scale = scale
            Base.known.append(cls.__name__)

    class First(Base, scale=n):
        pass

    time.sleep(0)

    class Second(Base, scale=3):
        pass

    time.sleep(0)
    return x * First.scale + Second().scale, Base.known


@case(_sets)
def told_of_names(x, n):
    class Field:
        def __init__(self, default):
            self.default = default

        def __set_name__(self, owner, name):
            self.name = f"_{name}"

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.get(self.name, self.default)

        def __set__(self, instance, value):
            instance.__dict__[self.name] = value

    class Row:
        a = Field(n)
        b = Field(1)

    row = Row()
    row.b = x
    time.sleep(0)
    before = row.a
    row.a = row.b + 1
    return row.a + row.b + before, Row.a.name, Row.b.default, sorted(vars(row))


@case(_sets)
def protocols(x, n):
    @typing.runtime_checkable
    class Runs(typing.Protocol):
        def run(self): ...

    class One:
        def run(self):
            return n

    class Other:
        pass

    one, other = One(), Other()
    time.sleep(0)
    return x + one.run(), isinstance(one, Runs), isinstance(other, Runs)


@case(_sets)
def modules_with_a_mode(x, n):
    class Reduction(enum.Enum):
        SUM = "sum"
        MEAN = "mean"

    class Loss(torch.nn.Module):
        def __init__(self, reduction):
            super().__init__()
            self.reduction = reduction

        def forward(self, y):
            print(self.reduction.value)
            time.sleep(0)
            return y.sum() if self.reduction is Reduction.SUM else y.mean()

    return Loss(Reduction.SUM if n % 2 else Reduction.MEAN)(x)
