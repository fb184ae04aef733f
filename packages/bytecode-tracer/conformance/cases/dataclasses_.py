"""Dataclasses and named tuples: as arguments, results, made inside, frozen, with defaults."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import typing
from typing import ClassVar, NamedTuple

import torch

from conformance.declare import case, t, with_x


@dataclasses.dataclass
class Config:
    width: int = 2
    scale: float = 1.0
    name: str = "small"
    tags: list = dataclasses.field(default_factory=list)
    limit: ClassVar[int] = 5

    @property
    def double(self):
        return self.width * 2

    def grow(self, by=1):
        self.width += by
        return self


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    x: object = None

    def moved(self, by):
        return dataclasses.replace(self, n=self.n + by)


@dataclasses.dataclass(slots=True)
class Slotted:
    x: object
    n: int = 1


@dataclasses.dataclass(order=True)
class Version:
    major: int
    minor: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(kw_only=True)
class Checked:
    x: torch.Tensor
    n: int = 1
    total: object = dataclasses.field(init=False)

    def __post_init__(self):
        if self.n < 0:
            raise ValueError("negative")
        self.total = self.x.sum() * self.n


class Pair(NamedTuple):
    first: object
    second: object = 3

    def swapped(self):
        return Pair(self.second, self.first)


Plain = collections.namedtuple("Plain", "a b", defaults=[1])


def _configs():
    made = Config(width=3)
    yield (t(2), made)
    made.width = 4
    yield (t(2), made)
    made.tags.append("new")
    yield (t(2), made)
    yield (t(2), Config(scale=2.5))


@case(_configs)
def fields_change(x, config):
    return x * config.width * config.scale, len(config.tags), config.double


@case(lambda: [(t(2), Config()), (t(2), Config(width=7)), (t(3), Config())])
def mutated_by_method(x, config):
    grown = config.grow(2)
    return x * grown.width, grown is config


@case(with_x(1, 2))
def made_inside(x, n):
    made = Config(n, tags=["a"])
    made.tags.append(x)
    return made


@case(with_x(1, 2))
def equality_and_repr(x, n):
    a, b = Config(n), Config(1)
    return a == b, a != b, repr(a), str(b), x


@case(lambda: [(Frozen(1, t(2)), 2), (Frozen(2, t(2)), 2), (Frozen(1, t(3)), 0)])
def frozen_replace(frozen, by):
    moved = frozen.moved(by)
    return moved, moved.x is frozen.x, frozen.x * moved.n


@case(lambda: [(Frozen(1, t(2)),), (Frozen(2),)])
def frozen_assignment_raises(frozen):
    try:
        frozen.n = 5
    except dataclasses.FrozenInstanceError as error:
        return str(error), frozen


@case(with_x(1, 2))
def frozen_as_key(x, n):
    table = {Frozen(1): x, Frozen(n): x + 1}
    return table[Frozen(1)], len(table), hash(Frozen(n)) == hash(Frozen(n))


@case(lambda: [(Slotted(t(2)),), (Slotted(t(2), 5),), (Slotted(t(3), 5),)])
def slotted(made):
    made.n += 1
    return made.x * made.n


@case(with_x(1, 2, 3))
def ordering(x, n):
    versions = [Version(n, 5), Version(2, 1), Version(1)]
    return sorted(versions), max(versions), Version(n) < Version(2), x


@case(lambda: [(t(2), 2), (t(3), 2), (t(2), -1)])
def post_init(x, n):
    made = Checked(x=x, n=n)
    return made.total, made


@case(lambda: [(Config(),), (Config(4, tags=[t(2)]),), (Config(tags=["a"]),)])
def as_dict_and_tuple(config):
    return dataclasses.asdict(config), [f.name for f in dataclasses.fields(config)]


@case(with_x(1, 2))
def class_variable(x, n):
    Config.limit = n
    return x * Config().limit, Config(limit := n).width, limit


@case(with_x(1, 2))
def unexpected_argument(x, n):
    return Config(n, wdth=x)


@case(with_x(1, 2))
def defined_inside(x, n):
    @dataclasses.dataclass
    class Local:
        x: object
        n: int = n

        def run(self):
            return self.x * self.n

    return Local(x).run(), Local(x) == Local(x, n), repr(Local(1))


@case(lambda: [(Pair(t(2)),), (Pair(t(2), 5),), (Pair(t(3), 5),)])
def named_tuple_argument(pair):
    first, second = pair
    return first * second, pair.swapped(), pair._replace(second=None), pair


@case(with_x(1, 2))
def named_tuple_made(x, n):
    made = Pair(x, second=n)
    return made, made[0] is x, made._fields, made._asdict(), len(made), isinstance(made, tuple)


@case(lambda: [(Plain(t(2)),), (Plain(t(2), 2),), (Plain(t(3), t(3)),)])
def collections_namedtuple(made):
    return (
        made.a * made.b,
        Plain._make([1, 2]),
        made._replace(a=1),
        made.count(1) if made.b == 1 else 0,
    )


@case(with_x(1, 2))
def inherited(x, n):
    @dataclasses.dataclass
    class Wide(Config):
        extra: object = None

        def grow(self, by=1):
            return super().grow(by * 10)

    return Wide(n, extra=x).grow().width, Wide(extra=x).extra, Wide.__mro__[1]


@case(lambda: [(Config(tags=[t(2)]),), (Config(tags=[t(2), t(2)]),), (Config(),)])
def list_field_mutated(config):
    config.tags.append(len(config.tags))
    config.name += "!"
    return config.tags[0]


@dataclasses.dataclass
class Settings:
    scale: float
    names: list = dataclasses.field(default_factory=list)
    level: int = 3
    hidden: int = dataclasses.field(default=0, repr=False, compare=False)


@dataclasses.dataclass(frozen=True, order=True)
class Numbered:
    major: int
    minor: int = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Compact:
    a: int
    b: object = None


@dataclasses.dataclass
class Derived(Settings):
    start: dataclasses.InitVar[int] = 1
    total: float = dataclasses.field(init=False, default=0.0)
    kind: typing.ClassVar[str] = "derived"

    def __post_init__(self, start):
        self.total = self.scale + start


@dataclasses.dataclass
class Nest:
    inner: Settings
    rows: list
    table: dict


@case(with_x(1, 2))
def dataclass_made(x, n):
    made = Settings(n, ["a"])
    other = dataclasses.replace(made, level=n)
    return x * made.scale, made, other, made == Settings(n, ["a"]), repr(other)


@case(lambda: [(t(2), Settings(1.0)), (t(2), Settings(2.0, ["a"], 4))])
def dataclass_argument(x, settings):
    other = dataclasses.replace(settings, scale=5.0)
    settings.level += 1
    return x * settings.scale, other, dataclasses.asdict(settings), dataclasses.astuple(other)


@case(lambda: [(t(2), Numbered(1)), (t(2), Numbered(2, 5))])
def frozen_and_ordered(x, version):
    try:
        version.major = 3
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    return (
        x * version.major,
        text,
        version < Numbered(1, 9),
        hash(version) == hash((1, 0)),
        max(version, Numbered(1, 1)),
    )


@case(lambda: [(t(2), Compact(a=1)), (t(2), Compact(a=2, b="b"))])
def slots_and_keywords(x, compact):
    made = Compact(a=3, b=x)
    return x * compact.a, made.b is x, dataclasses.replace(compact, a=7), hasattr(made, "__dict__")


@case(with_x(1, 4))
def init_variables(x, n):
    made = Derived(2.0, level=n, start=n)
    return x * made.total, made, Derived.kind, [f.name for f in dataclasses.fields(made)]


@case(with_x(1, 2))
def dataclass_as_dict(x, n):
    nest = Nest(Settings(n), [Settings(2), n], {"k": Numbered(n)})
    made = dataclasses.asdict(nest)
    plain = dataclasses.asdict(nest, dict_factory=lambda pairs: sorted(name for name, _ in pairs))
    return x, made, plain, dataclasses.astuple(nest), dataclasses.is_dataclass(nest)


@case(with_x(1, 2))
def dataclass_of_tensors(x, n):
    @dataclasses.dataclass
    class Pair:
        left: torch.Tensor
        right: torch.Tensor | None = None

        def both(self):
            return self.left + (0 if self.right is None else self.right)

    pair = Pair(x * n)
    bigger = dataclasses.replace(pair, right=x)
    shown = {field.name: getattr(bigger, field.name) for field in dataclasses.fields(bigger)}
    return pair.both(), bigger.both(), shown


@case(with_x(1, 2))
def made_dataclass(x, n):
    made = dataclasses.make_dataclass("Made", [("a", int), ("b", int, 5)])
    return x * made(n).b, made(n).a, [f.name for f in dataclasses.fields(made)]
