"""What a call makes and code after a break uses: another object each time, the same code."""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import time
import typing

from conformance.declare import case, scenario, t

BREAKS_MEANT = True


def _numbers():
    return [(t(2), n) for n in (1, 2, 3, 1, -4)]


@case(_numbers)
def closure_over_a_number(x, n):
    def add(y, by=2):
        return y + n * by

    time.sleep(0)
    return add(x), add(x, 3)


@case(_numbers)
def default_that_changes(x, n):
    def add(y, by=n, *, again=n + 1):
        return y + by * again

    time.sleep(0)
    return add(x), add(x, again=1), add.__defaults__, add.__kwdefaults__


@case(_numbers)
def one_of_two_functions(x, n):
    chosen = (lambda y: y + 1) if n % 2 else (lambda y: y - 1)
    time.sleep(0)
    return chosen(x)


@case(_numbers)
def counter(x, n):
    def more():
        nonlocal n
        n += 1
        return n

    more()
    time.sleep(0)
    return x + more(), more(), n


@case(_numbers)
def two_closures_share_a_cell(x, n):
    def put(value):
        nonlocal n
        n = value

    def get():
        return n

    time.sleep(0)
    put(get() + 5)
    return x * n, get()


@scenario(lambda state: [(t(2), state[n], state[m]) for n, m in ((0, 1), (0, 0), (1, 0), (1, 1))])
def cells_that_are_one_or_two():
    def make():
        n = 0

        def put(value):
            nonlocal n
            n += value
            return n

        return put

    def program(x, one, other):
        time.sleep(0)
        first = one(1)
        return x + first, other(10), one(0)

    return program, (make(), make())


@case(_numbers)
def which_function_it_is(x, n):
    def one(y):
        return y + 1

    def two(y):
        return y + 1

    given = one if n > 1 else two
    held = {one: 1, two: 2}
    time.sleep(0)
    return x + (given is one), given is two, one == two, held[given], one in held


@case(_numbers)
def what_a_function_says(x, n):
    def described(y: int, /, z=1, *args: str) -> int:
        """Its documentation."""
        return y

    described.mark = n
    time.sleep(0)
    said = described.__name__, described.__qualname__, described.__doc__, described.__annotations__
    has = hasattr(described, "other"), described.__code__.co_argcount, callable(described)
    return x + described.mark, said, has


@case(_numbers)
def attribute_set_after(x, n):
    def described(y):
        return y

    time.sleep(0)
    described.mark = n
    return x + described.mark, vars(described)


@case(lambda: [(t(2), n) for n in (1, 2, 3, 1)], then=lambda made: (made[0], made[1](3), made[2]))
def returned_function(x, n):
    def add(y):
        return y + n

    kept = [add]
    time.sleep(0)
    return add(x), add, kept[0] is add


@case(_numbers)
def decorated(x, n):
    def twice(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            return function(*args, **kwargs) * 2

        return run

    @twice
    def add(y):
        return y + n

    time.sleep(0)
    return add(x), add.__name__, add.__wrapped__(x)


@case(_numbers)
def recursive(x, n):
    def power(k):
        return 1 if k <= 0 else 2 * power(k - 1)

    time.sleep(0)
    return x + power(n)


@case(_numbers)
def inside_containers(x, n):
    made = {"one": [lambda y: y + n], "two": (lambda y: y * n, functools.partial(pow, n))}
    time.sleep(0)
    return made["one"][0](x), made["two"][0](x), made["two"][1](2)


@case(_numbers)
def key_function_and_map(x, n):
    values = map(lambda v: v * n, [3, 1, 2])
    time.sleep(0)
    return x + sum(values), sorted([3, 1, 2], key=lambda v: v * n)


@scenario(lambda state: _replacing(state))
def code_is_replaced():
    def inner(y):
        return y + 1

    def program(x, function):
        return function(x) * 2

    return program, inner


def _replacing(inner):
    yield t(2), inner
    yield t(3), inner
    inner.__code__ = (lambda y: y - 1).__code__
    yield t(2), inner
    inner.__defaults__ = (t(2),)
    yield t(2), inner


@scenario(lambda state: [(t(2), make(n)) for n in (1, 2, 3) for make in state])
def functions_passed_by_the_caller():
    def adding(n):
        return lambda y: y + n

    def scaling(n):
        return lambda y, factor=n: y * factor

    def program(x, function):
        return function(x) + 1

    return program, (adding, scaling)


@case(_numbers)
def local_class(x, n):
    class Scale:
        factor = 3

        def __init__(self, by):
            self.by = by

        def apply(self, y):
            return y * self.by + self.factor

    time.sleep(0)
    return Scale(n).apply(x)


@case(_numbers)
def instance_of_local_class(x, n):
    class Base:
        def apply(self, y):
            return y + self.by

    class Scale(Base):
        def __init__(self, by):
            self.by = by

        def apply(self, y):
            return super().apply(y) * 2

        @property
        def doubled(self):
            return self.by * 2

    made = Scale(n)
    time.sleep(0)
    return made.apply(x), made.doubled, isinstance(made, Base), type(made) is Scale


@case(_numbers)
def named_tuple_and_deque(x, n):
    pair = collections.namedtuple("Pair", "a b")(x, lambda y: y + n)
    kept = collections.deque([n, x], maxlen=3)
    time.sleep(0)
    kept.append(pair.b(pair.a))
    return list(kept), pair.a


@case(_numbers)
def class_that_depends_on_a_number(x, n):
    class Scale:
        factor = n
        kept = [n, 1]

        def apply(self, y):
            return y * self.factor + n + sum(self.kept)

    time.sleep(0)
    return Scale().apply(x), Scale.factor, Scale.kept


@case(_numbers)
def one_of_two_classes(x, n):
    def make(by):
        class Scale:
            def apply(self, y):
                return y * by

        return Scale

    first, second = make(2), make(2)
    chosen = first if n > 1 else second
    made, other = chosen(), first()
    time.sleep(0)
    known = isinstance(made, first), isinstance(made, second), type(made) is type(other)
    return made.apply(x), known, chosen is first, issubclass(first, second)


@case(_numbers)
def kinds_of_methods(x, n):
    class Base:
        __slots__ = ("by",)
        count = 0

        def __init__(self, by):
            self.by = by

        @classmethod
        def make(cls, by):
            return cls(by + 1)

        @staticmethod
        def double(y):
            return y * 2

        @property
        def shown(self):
            return f"by {self.by}"

        @shown.setter
        def shown(self, text):
            self.by = len(text)

        def __call__(self, y):
            return self.double(y) + self.by

        def __eq__(self, other):
            return self.by == other.by

        def __hash__(self):
            return 7

    made = Base.make(n)
    time.sleep(0)
    again = Base.make(n)
    same = made == again, hash(made), made.shown
    made.shown = "four"
    return made(x), Base(1)(x), same, made.by, {made: 1}[made]


@case(_numbers)
def class_that_changes_after(x, n):
    class Scale:
        factor = 3

    made = Scale()
    time.sleep(0)
    Scale.factor = n
    made.own = x
    Scale.apply = lambda self: self.own * self.factor
    return made.apply(), vars(made)


@case(_numbers)
def dataclass_of_the_call(x, n):
    @dataclasses.dataclass
    class Pair:
        one: int
        two: object = None
        three: list = dataclasses.field(default_factory=list)

    pair = Pair(n, x)
    time.sleep(0)
    other = dataclasses.replace(pair, one=n + 1)
    return pair.one * pair.two, other.one, other.three, pair == Pair(n, x, []) if n < 0 else None


@case(_numbers, then=lambda made: (made[0], type(made[1]).__name__, made[1].apply(2), made[2]))
def instance_that_leaves(x, n):
    class Scale:
        def apply(self, y):
            return y * n

    time.sleep(0)
    made = Scale()
    time.sleep(0)
    return made.apply(x), made, type(made) is Scale


@case(_numbers)
def inherits_after_the_break(x, n):
    class Base:
        def apply(self, y):
            return y + n

    time.sleep(0)

    class Derived(Base):
        def apply(self, y):
            return super().apply(y) * 2

    made = Derived()
    return made.apply(x), isinstance(made, Base), Derived.__mro__[1] is Base


@case(_numbers)
def exceptions_of_the_call(x, n):
    class OddError(ValueError):
        pass

    time.sleep(0)
    try:
        if n % 2:
            raise OddError(n)
    except OddError as error:
        return x + error.args[0]
    return x


@case(_numbers)
def bound_methods_and_iterators(x, n):
    class Numbers:
        def __init__(self, *values):
            self.values = values

        def __iter__(self):
            return iter(self.values)

        def __getitem__(self, place):
            return self.values[place] * n

        def __len__(self):
            return len(self.values)

        def __contains__(self, value):
            return value == n

    made = Numbers(1, 2, 3)
    method = made.__getitem__
    time.sleep(0)
    return x + sum(made), method(1), made[2], len(made), n in made, [*made]


@case(_numbers)
def metaclasses_of_the_call(x, n):
    class Counting(type):
        made = n

        def __call__(cls, *args):
            one = super().__call__(*args)
            one.number = cls.made
            return one

        def __contains__(cls, item):
            return item == n

    class Thing(metaclass=Counting):
        def __init__(self, value):
            self.value = value

    time.sleep(0)
    made = Thing(x)
    return made.value + made.number, 2 in Thing, type(Thing) is Counting, isinstance(made, Thing)


def make_doubling(name, bases, namespace):
    return type(name, bases, {**namespace, "by": 2})


class Doubling(type):
    def __call__(cls, *args):
        return super().__call__(*(2 * arg for arg in args))


@case(_numbers)
def classes_with_metaclasses_of_modules(x, n):
    class Thing(metaclass=Doubling):
        def __init__(self, value):
            self.value = value + n

    class Made(metaclass=make_doubling):
        pass

    time.sleep(0)
    return Thing(x).value, Made.by, Made() is Made()


@case(_numbers)
def abstract_classes_of_the_call(x, n):
    class Base(abc.ABC):
        @abc.abstractmethod
        def apply(self, y): ...

    class Adding(Base):
        def apply(self, y):
            return y + n

    if n == 3:
        Base.register(int)
    time.sleep(0)
    try:
        Base()
    except TypeError as error:
        text = str(error)
    return Adding().apply(x), text, isinstance(n, Base), issubclass(Adding, Base)


@case(_numbers)
def classes_of_the_call_that_inherit_from_builtins(x, n):
    class Row(list):
        def total(self):
            return sum(self) + n

    class Table(dict):
        def __missing__(self, key):
            return key * n

    class Size(int):
        def __add__(self, other):
            return int(self) * other

    class Pair(tuple):
        def swapped(self):
            return Pair(self[::-1])

    row, table, size, pair = Row([1, n]), Table(a=n), Size(n), Pair((n, x))
    time.sleep(0)
    row.append(2)
    made = Row([n]), table["a"], table["bb"], size + 3, Size(2) + 4, pair.swapped()[0]
    return x * row.total(), made, row, len(table), Row().total(), type(made[0]) is Row


@case(_numbers)
def generic_classes_of_the_call(x, n):
    T = typing.TypeVar("T")

    class Holder(typing.Generic[T]):
        def __init__(self, value: T):
            self.value = value

    time.sleep(0)
    return Holder(x).value + n, Holder.__parameters__ == (T,)


@case(_numbers)
def named_tuples_of_the_call(x, n):
    Point = collections.namedtuple("Point", "a b", defaults=[n])
    p = Point(x)
    time.sleep(0)
    moved = p._replace(b=p.b + 1)
    same = type(p) is Point, type(moved) is Point, isinstance(moved, tuple), p == Point(x, n)
    a, b = moved
    return p.a * b, same[:3], moved._asdict(), Point._fields, Point._make([a, 1]), repr(p.b)


@case(_numbers)
def typed_named_tuples_of_the_call(x, n):
    class Pair(typing.NamedTuple):
        first: typing.Any
        second: int = n

        def total(self):
            return self.first + self.second

    p = Pair(x)
    time.sleep(0)
    q = Pair(x, 2)
    return p.total(), q.total(), type(p) is type(q), p, Pair, Pair._field_defaults


@case(_numbers)
def named_tuples_of_one_name(x, n):
    first = collections.namedtuple("Made", "a b")
    second = collections.namedtuple("Made", "b a" if n > 1 else "a b")
    p, q = first(x, 1), second(x, n)
    if n == 3:
        first.a = second.a
    time.sleep(0)
    return p.b, q.b, p.a, isinstance(p, second), first is second, type(q)._fields


@case(_numbers)
def named_tuple_that_inherits(x, n):
    class Base(collections.namedtuple("Base", "a b")):
        def scaled(self):
            return self.a * self.b

    class Named(Base):
        __slots__ = ()

        def __new__(cls, a, b=n):
            return super().__new__(cls, a, b)

    made = Named(x)
    time.sleep(0)
    return made.scaled(), made, Named(x, 3).scaled(), made._replace(b=2), isinstance(made, Base)
