"""typing, abc, collections.abc: generics, protocols, casts, checks."""

from __future__ import annotations

import abc
import collections.abc
import inspect
import numbers
import types
import typing
from typing import Any, Generic, Protocol, TypedDict, TypeVar, cast, runtime_checkable

import torch

from conformance.declare import case, t, with_x

T = TypeVar("T")


class Box(Generic[T]):
    def __init__(self, value: T):
        self.value = value

    def map(self, function) -> Box[Any]:
        return Box(function(self.value))


@runtime_checkable
class Scalable(Protocol):
    def scale(self, x): ...


class Doubler:
    def scale(self, x):
        return x * 2


class Row(TypedDict, total=False):
    name: str
    values: list


class Shape(abc.ABC):
    @property
    @abc.abstractmethod
    def area(self): ...

    @classmethod
    @abc.abstractmethod
    def unit(cls): ...

    @classmethod
    def __subclasshook__(cls, other):
        return hasattr(other, "area") or NotImplemented


class Square(Shape):
    def __init__(self, side):
        self.side = side

    @property
    def area(self):
        return self.side * self.side

    @classmethod
    def unit(cls):
        return cls(1)


class Duck:
    area = 5


@case(lambda: [(Box(t(2)),), (Box(3),), (Box(t(3)),)])
def generic_class(box):
    return box.map(lambda v: v * 2).value, isinstance(box, Box)


@case(with_x(1, 2))
def generic_alias(x, n):
    made = Box[int](n)
    return made.value * x, typing.get_origin(Box[int]) is Box, typing.get_args(dict[str, int])


@case(lambda: [(Doubler(), t(2)), (3, t(2)), (Doubler(), t(3))])
def protocol_check(value, x):
    return value.scale(x) if isinstance(value, Scalable) else x


@case(with_x(1, "a"))
def casts(x, value):
    assert typing.TYPE_CHECKING is False
    return cast(int, value), cast("list[int]", x) is x


@case(with_x("a", "b"))
def typed_dict(x, name):
    row: Row = {"name": name, "values": [x]}
    row["values"].append(name)
    return row, Row(name=name)


@case(lambda: [(Square(2), t(2)), (Square(t(2)), t(2)), (Square(3), t(3))])
def abstract_properties(shape, x):
    return shape.area * x, type(shape).unit().area, isinstance(shape, Shape)


@case(lambda: [(Square(1),), (Duck(),), (3,)])
def subclass_hook(value):
    return isinstance(value, Shape), issubclass(type(value), Shape)


@case(with_x([1], (1,), {"a": 1}, {1}, "a", 3, iter([1]), len))
def collection_checks(x, value):
    kinds = collections.abc
    names = ("Sequence", "Mapping", "Set", "Iterable", "Iterator", "Hashable", "Callable", "Sized")
    return [name for name in names if isinstance(value, getattr(kinds, name))], x


@case(with_x(1, 2.5, True, 1j, "a"))
def number_checks(x, value):
    return isinstance(value, numbers.Number), isinstance(value, numbers.Integral), x


@case(with_x(1, None, "a", 2.0))
def union_checks(x, value):
    return isinstance(value, int | None), isinstance(value, (str, float)), x


@case(with_x(1, 2))
def new_type_and_named(x, n):
    Count = typing.NewType("Count", int)
    Point = typing.NamedTuple("Point", [("a", int), ("b", object)])
    return Count(n) * x, Point(n, x).b


@case(with_x(1, 2))
def annotations_read(x, n):
    def inner(a: int, b: str = "b") -> float: ...

    return inner.__annotations__, typing.get_type_hints(Box.__init__), x * n


@case(with_x(1, "a", None))
def literal_and_optional(x, value):
    return typing.get_args(typing.Literal[1, "a"]), typing.Optional[int] == (int | None), x


@case(with_x([1], [1, "a"]))
def duck_typing(x, items):
    def total(values: collections.abc.Iterable[int]) -> int:
        return sum(v for v in values if isinstance(v, int))

    return x * total(items)


@case(lambda: [(t(2), torch.Tensor), (t(2), (int, torch.Tensor)), (t(2), int)])
def kind_as_argument(x, kind):
    return isinstance(x, kind), x


@case(with_x(1, 2))
def overloads_and_final(x, n):
    @typing.final
    class Local:
        @typing.no_type_check
        def run(self, y: undefined):  # noqa: F821
            return y * n

    return Local().run(x)


@case(with_x(1, 2))
def registered_subclass(x, n):
    class Base(abc.ABC):
        pass

    class Other:
        value = n

    Base.register(Other)
    return isinstance(Other(), Base), Other().value * x


@case(with_x(1, 2))
def class_variables(x, n):
    class Local:
        count: typing.ClassVar[int] = n
        name: str

    return Local.count * x, sorted(Local.__annotations__), hasattr(Local, "name")


class Point:
    def __init__(self, a, b):
        self.a = a
        self.b = b


class Figure(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    @abc.abstractmethod
    def name(self): ...


class Tile(Figure):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2

    @property
    def name(self):
        return "square"


@typing.runtime_checkable
class Sized(typing.Protocol):
    def area(self): ...


class Entry(typing.NamedTuple):
    a: torch.Tensor
    b: int = 2


@case(lambda: [(t(2), Tile(2)), (t(2), Tile(3))])
def abstract_classes(x, shape):
    try:
        Figure()
    except TypeError as error:
        text = str(error)
    return x * shape.area(), text, shape.name, isinstance(shape, Sized), isinstance(x, Sized)


@case(with_x([1], {"a": 1}, (2,), "s"))
def abstract_containers(x, value):
    kinds = collections.abc.Mapping, collections.abc.Sequence, collections.abc.Hashable
    found = [isinstance(value, kind) for kind in (*kinds, collections.abc.Iterable)]
    return x, found, issubclass(type(value), collections.abc.Sized), callable(value)


class Vector(collections.abc.MutableSequence):
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def insert(self, index, value):
        self.items.insert(index, value)


@case(with_x(1, 2))
def inherited_methods(x, n):
    vector = Vector(x, n)
    vector.append(3)
    vector.extend([4, 5])
    vector += [6]
    vector.remove(3)
    return vector[0] * n, vector.pop(), vector.index(5), list(reversed(vector))[:2], 5 in vector


@case(with_x(1, 2))
def typing_at_run_time(x, n):
    box = Box[int](n)
    row = Entry(x, b=n)
    cast = typing.cast(int, n)
    hints = typing.get_type_hints(Entry)
    args = typing.get_args(typing.Union[int, str]), typing.get_origin(list[int])
    return x * box.value, row, row._replace(b=7).b, cast, list(hints), args, row._asdict()["b"]


@case(with_x(1, 2))
def types_module(x, n):
    space = types.SimpleNamespace(a=n, b=x)
    space.c = space.a + 1
    frozen = types.MappingProxyType({"k": n})
    method = types.MethodType(lambda self, y: y * self, n)
    made = types.new_class("Made", (), {}, lambda ns: ns.update(v=n))
    return method(x), space.c, frozen["k"], made.v, isinstance(len, types.BuiltinFunctionType)


def annotated(x: torch.Tensor, n: int = 2, *rest, flag=False, **more) -> torch.Tensor:
    """Documentation."""
    return x * n


@case(with_x(1, 2))
def inspecting(x, n):
    signature = inspect.signature(annotated)
    bound = signature.bind(x, n, flag=True)
    bound.apply_defaults()
    names = list(signature.parameters)
    kinds = inspect.isfunction(annotated), inspect.isclass(Point), inspect.ismodule(inspect)
    return (
        annotated(*bound.args[:2]),
        names,
        kinds,
        list(bound.arguments),
        inspect.getdoc(annotated),
    )


@case(lambda: [(t(2), {"n": 3, "other": 1}), (t(2), {"n": 4})])
def filtered_keywords(x, options):
    known = set(inspect.signature(annotated).parameters)
    given = {name: value for name, value in options.items() if name in known}
    full = inspect.getfullargspec(annotated)
    return annotated(x, **given), full.args, full.varkw, inspect.isgeneratorfunction(annotated)
