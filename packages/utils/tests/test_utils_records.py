"""Records behave as the standard library's dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from plait_utils.records import dataclass

T = TypeVar("T")
OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
]


def point(decorator: Callable[..., Any], **options: Any) -> Any:
    @decorator(**options)
    class Point(Generic[T]):
        """In a plane."""

        kinds: ClassVar[list[str]] = ["plain"]
        x: int
        y: T
        hidden: int = field(default=0, compare=False, repr=False)
        hashed: int = field(default=0, hash=False)
        made: list[int] = field(default_factory=list, compare=False)
        late: int = field(init=False, default=7)
        none: int = field(init=False, repr=False, compare=False)
        self: int = 1

        def __post_init__(self) -> None:
            object.__setattr__(self, "none", self.x + 1)

        @property
        def double(self) -> int:
            return 2 * self.x

    Point.__qualname__ = "Point"
    return Point


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        return type(error), str(error).replace("_self", "self")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_instances_behave_alike(options: dict[str, bool]) -> None:
    ours, theirs = point(dataclass, **options), point(dataclasses.dataclass, **options)
    observations: list[Callable[[Any], Any]] = [
        lambda P: repr(P(1, [2])),
        lambda P: repr(P(1, y=2, hidden=3, made=[4])),
        lambda P: P(1, 2) == P(1, 2),
        lambda P: P(1, 2) == P(1, 2, hidden=9),
        lambda P: P(1, 2) == P(1, 2, hashed=9),
        lambda P: P(1, 2) == (1, 2),
        lambda P: P(1, 2) == P(1, [2]),
        lambda P: hash(P(1, 2)) == hash(P(1, 2, hashed=3)),
        lambda P: hash(P(1, [])),
        lambda P: (P.__hash__ is None, P.kinds, P.__doc__, P.__match_args__),
        lambda P: (P(1, 2).late, P(1, 2).none, P(1, 2).double, P(1, 2).made, P(1, 2).self),
        lambda P: setattr(P(1, 2), "x", 3),
        lambda P: delattr(P(1, 2), "x"),
        lambda P: P(),
        lambda P: P(1, 2, late=3),
        lambda P: (hasattr(P(1, 2), "__dict__"), hasattr(P, "__slots__")),
        lambda P: [f.name for f in dataclasses.fields(P)],
        lambda P: repr(dataclasses.replace(P(1, 2), x=5)),
        lambda P: dataclasses.asdict(P(1, [2])),
        lambda P: repr(copy.copy(P(1, 2))),
        lambda P: repr(copy.deepcopy(P(1, [2]))),
        lambda P: list(inspect.signature(P).parameters),
        lambda P: [*(p.kind for p in inspect.signature(P.__init__).parameters.values())],
    ]
    for number, observe in enumerate(observations):
        wanted, got = outcome(lambda P=theirs: observe(P)), outcome(lambda P=ours: observe(P))
        if options["eq"] is False and number in (7, 8):
            wanted, got = type(wanted), type(got)  # by identity
        assert got == wanted, number


@dataclass(frozen=True, slots=True)
class Base:
    x: int


@dataclass(frozen=True, slots=True)
class Derived(Base):
    y: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Derived) and other.y == self.y


@dataclass(frozen=True)
class Open:
    x: int


class Plain(Open):
    """Not a record itself: it may have other attributes."""


def test_classes_that_inherit() -> None:
    assert repr(Derived(1, 2)) == "Derived(x=1, y=2)"
    assert Derived(1, 2) == Derived(3, 2)
    assert hash(Derived(1, 2)) != hash(Derived(3, 2))
    assert Base(1) != Derived(1)
    plain = Plain(1)
    plain.other = 2  # type: ignore[attr-defined]  # as the class says
    with pytest.raises(FrozenInstanceError):
        plain.x = 2  # type: ignore[misc]  # frozen
    with pytest.raises(FrozenInstanceError):
        Derived(1).y = 2  # type: ignore[misc]  # frozen


def test_records_are_pickled_and_matched() -> None:
    assert pickle.loads(pickle.dumps(Derived(1, 2))).x == 1
    match Derived(1, 2):
        case Derived(x, y):
            assert (x, y) == (1, 2)


def test_what_the_class_defines_stays() -> None:
    @dataclass(slots=True)
    class Own:
        x: int

        def __init__(self) -> None:
            self.x = 5

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 3

    assert (Own().x, repr(Own()), hash(Own()), Own() == Own()) == (5, "own", 3, True)


def test_numbers_that_equal_nothing_equal_themselves_as_in_tuples() -> None:
    @dataclass(frozen=True)
    class Single:
        x: float

    nan = math.nan
    assert Single(nan) == Single(nan)
    assert Single(nan) != Single(float("nan"))
    assert hash(Single(1)) == hash(Single(1.0))
