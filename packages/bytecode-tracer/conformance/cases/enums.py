"""Enumerations: as arguments, keys, flags, with methods."""

from __future__ import annotations

import enum

from conformance.declare import case, only, t, with_x


class Mode(enum.Enum):
    ADD = "add"
    MUL = "mul"

    def apply(self, x, n):
        return x + n if self is Mode.ADD else x * n

    @property
    def title(self):
        return self.value.title()

    @classmethod
    def default(cls):
        return cls.MUL


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


class Color(enum.StrEnum):
    RED = enum.auto()
    BLUE = "b"


class Planet(enum.Enum):
    EARTH = (2, 3.0)
    MARS = (1, 1.5)

    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius

    @property
    def gravity(self):
        return self.mass / self.radius**2


@case(with_x(Mode.ADD, Mode.MUL, Mode.ADD))
def argument(x, mode):
    return mode.apply(x, 3), mode


@case(with_x("add", "mul", "none"))
def lookup_by_value(x, name):
    try:
        return Mode(name).apply(x, 2)
    except ValueError as error:
        return str(error)


@case(with_x("ADD", "MUL", "none"))
def lookup_by_name(x, name):
    return Mode[name].apply(x, 2)


@case(with_x(Mode.ADD, Mode.MUL, None, "add"))
def comparison(x, mode):
    return mode == Mode.ADD, mode is Mode.MUL, mode in (Mode.ADD, None), x


@case(with_x(Mode.ADD, Mode.MUL))
def as_key(x, mode):
    table = {Mode.ADD: x, Mode.MUL: x * 2}
    return table[mode], list(table)


@case(with_x(Level.LOW, Level.HIGH, 3))
def int_enum_arithmetic(x, level):
    return x * level, level + 1, level > 2, level == Level.HIGH, f"{level}"


@case(with_x(Access.READ, Access.BOTH, Access.WRITE))
def flags(x, access):
    return access | Access.READ, access & Access.WRITE, Access.READ in access, ~access, x


@case(with_x(Color.RED, Color.BLUE))
def string_enum(x, color):
    return color + "!", color.upper(), f"{color}", x


@case(only(1, 2))
def iteration(n):
    return [m.name for m in Mode], len(Mode), list(Level), [p.value[0] * n for p in Planet]


@case(with_x(Planet.EARTH, Planet.MARS))
def with_init(x, planet):
    return x * planet.gravity, planet.mass


@case(with_x(Mode.ADD, Mode.MUL))
def text(x, mode):
    return str(mode), repr(mode), mode.name, mode.value, mode.title, Mode.default(), x


@case(with_x(1, 2))
def made_inside(x, n):
    Local = enum.Enum("Local", ["A", "B"])
    return Local(n).name, x


@case(with_x(1, 2))
def defined_inside(x, n):
    class Local(enum.Enum):
        A = n
        B = 5

    return Local.A.value * x, Local(5).name


@case(with_x(Mode.ADD, Mode.MUL))
def assignment_raises(x, mode):
    try:
        mode.value = 3
    except AttributeError as error:
        return type(error), x


ASKED: list[int] = []


class Lenient(enum.Enum):
    """Values that it lacks are asked of Python code, which notes them."""

    ONE = 1
    TWO = 2

    @classmethod
    def _missing_(cls, value):
        ASKED.append(value)
        return None if value > 8 else cls.ONE


@case(with_x(1, 5, 2, 9, 5))
def missing_values_are_asked(x, value):
    ASKED.clear()
    try:
        found = Lenient(value)
    except ValueError as error:
        return repr(error), list(ASKED)
    return x * found.value, found, list(ASKED)


@case(with_x(1, 7))
def missing_values_of_an_enum_made_here(x, value):
    seen = []

    class Made(enum.Enum):
        FIRST = 1

        @classmethod
        def _missing_(cls, asked):
            seen.append(asked)
            return cls.FIRST

    return Made(value).name, seen, x


class Lowered(enum.Enum):
    """Its members' values come of their names."""

    def _generate_next_value_(name, start, count, last):  # noqa: N805  # called without an object
        return name.lower()


@case(with_x(1, 2))
def next_values_of_the_base(x, n):
    class Made(Lowered):
        FIRST = enum.auto()
        SECOND = enum.auto()

    return [member.value for member in Made], Made("second").name, x * n


class Shown(enum.Enum):
    """It formats itself."""

    LEFT = "l"

    def __format__(self, spec):
        return f"<{self.name}:{spec}>"


@case(with_x(1, 2))
def formats_itself(x, n):
    texts = format(Shown.LEFT), f"{Shown.LEFT}", f"{Shown.LEFT:>{n}}", format(Shown.LEFT, "x")
    return texts, Shown.mro(), list(Shown.__members__.items()), x


class Paint(enum.Enum):
    RED = 1
    GREEN = 2
    ALIAS = 1

    @property
    def lower(self):
        return self.name.lower()


class Grade(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Word(str, enum.Enum):
    A = "a"
    B = "b"


@case(lambda: [(t(2), Paint.RED), (t(2), Paint.GREEN), (t(2), Paint.ALIAS)])
def enum_argument(x, color):
    match color:
        case Paint.RED:
            x = x + 1
        case Paint.GREEN:
            x = x * 2
    return x, color.lower, color.value, Paint["RED"] is color, [c.name for c in Paint]


@case(with_x(1, 2, 3))
def enum_by_value(x, n):
    try:
        color = Paint(n)
    except ValueError as error:
        return x, str(error)
    return x * color.value, color in Paint, len(Paint), list(Paint.__members__), repr(color)


@case(lambda: [(t(2), Access.READ), (t(2), Access.BOTH), (t(2), Access(0))])
def flags_in_branches(x, mode):
    if Access.WRITE in mode:
        x = x + 1
    return (
        x,
        mode | Access.WRITE,
        mode & Access.READ,
        ~mode,
        bool(mode),
        mode ^ Access.BOTH,
        mode.name,
    )


@case(lambda: [(t(2), Grade.LOW, Word.A), (t(2), Grade.HIGH, Word.B)])
def enums_of_values(x, level, word):
    return x * level, level < 5, max(level, 3), word.upper(), {"a": 1}.get(word), f"{level}"


@case(with_x(1, 2))
def iterating_flags(x, n):
    mode = Access(n) | Access.READ
    return x, [part.name for part in mode], len(mode), mode.value, str(mode)


@case(with_x(1, 2))
def enum_made_inside(x, n):
    Kind = enum.Enum("Kind", ["A", "B"])
    return x * Kind(n).value, Kind(n).name
