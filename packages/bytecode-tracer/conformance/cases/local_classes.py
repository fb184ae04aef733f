"""Classes that the compiled program itself defines, uses and returns."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import operator
import types
import typing
from typing import ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from conformance.declare import case, with_x

both = with_x(1, 2, 1)


def _describes(result):
    """What the caller can do with a class and an instance of it that came back."""
    cls, made = result
    return type(made) is cls, cls(made.value).read(), made.read(), cls.__name__


@case(both, then=_describes)
def class_and_instance_returned(x, n):
    class Local:
        """Its documentation."""

        scale: ClassVar[int] = n

        def __init__(self, value):
            self.value = value

        def read(self):
            return self.value * self.scale + x

    return Local, Local(x)


@case(both)
def new_class_in_each_call(x, n):
    class Local:
        pass

    def make():
        class Local:
            pass

        return Local

    return Local, make() is make(), Local is Local, make(), make()


@case(both)
def every_kind_of_method(x, n):
    class Local:
        kind = n

        def plain(self, y):
            return x * y

        @classmethod
        def named(cls):
            return cls.__name__, cls.kind

        @staticmethod
        def added(y):
            return y + n

        @property
        def twice(self):
            """Two times."""
            return self.value * 2

        @twice.setter
        def twice(self, value):
            self.value = value / 2

        @twice.deleter
        def twice(self):
            del self.value

    made = Local()
    made.twice = 6
    before = made.twice, made.value
    del made.twice
    gone = hasattr(made, "twice")
    documented = Local.twice.__doc__, Local.twice.fget.__name__
    return made.plain(n), Local.named(), made.named(), Local.added(1), before, gone, documented


@case(both)
def bases_and_super(x, n):
    class Base:
        def run(self):
            return [x + 1]

    class Left(Base):
        def run(self):
            return ["left", *super().run()]

    class Right(Base):
        def run(self):
            return ["right", *super(Right, self).run()]

    class Bottom(Left, Right):
        def run(self):
            return [n, *super().run()]

    return Bottom().run(), [cls.__name__ for cls in Bottom.__mro__], Bottom


@case(both)
def super_with_wrong_arguments(x, n):
    class Base:
        pass

    class Other:
        def run(self):
            return super(Base, self).run()

    found = []
    for attempt in (lambda: super(1, x), lambda: Other().run(), lambda: super(Base, 3)):
        try:
            attempt()
        except TypeError as error:
            found.append(str(error))
    return found


@case(both)
def classmethod_through_super(x, n):
    class Base:
        @classmethod
        def make(cls, *args):
            return cls, args

    class Derived(Base):
        @classmethod
        def make(cls, *args):
            return super().make(*args, n)

        def again(self):
            return super().make(0)

    return Derived.make(1)[0] is Derived, Derived().again()[0] is Derived, Derived.make(2)[1]


@case(both)
def metaclass_in_full(x, n):
    log = []

    class Meta(type):
        @classmethod
        def __prepare__(mcs, name, bases, **options):
            log.append(("prepare", name, sorted(options)))
            return {"prepared": n}

        def __new__(mcs, name, bases, namespace, **options):
            log.append(("new", sorted(k for k in namespace if k[0] != "_")))
            return super().__new__(mcs, name, bases, namespace)

        def __init__(cls, name, bases, namespace, **options):
            super().__init__(name, bases, namespace)
            cls.options = options

        def __call__(cls, *args):
            made = super().__call__(*args)
            made.tagged = cls.__name__
            return made

        @property
        def shout(cls):
            return cls.__name__.upper()

    class Local(metaclass=Meta, flag=n):
        def __init__(self, value):
            self.value = value

    made = Local(x)
    return made.tagged, made.value, Local.prepared, Local.options, Local.shout, log, Local


@case(both)
def metaclass_operators(x, n):
    class Meta(type):
        def __len__(cls):
            return n

        def __contains__(cls, item):
            return item == n

        def __iter__(cls):
            return iter([n, n + 1])

        def __getitem__(cls, key):
            return key * 2

        def __add__(cls, other):
            return cls.__name__ + other

        def __repr__(cls):
            return f"<{cls.__name__}>"

        def __getattr__(cls, name):
            return "no " + name

        def __bool__(cls):
            return False

    class Local(metaclass=Meta):
        def __len__(self):
            return 100

    found = [len(Local), n in Local, 9 in Local, list(Local), Local[n], Local + "!"]
    return found, repr(Local), Local.other, bool(Local), len(Local()), [*Local]


@case(both)
def metaclass_checks_instances(x, n):
    class Meta(type):
        def __instancecheck__(cls, value):
            return value == n

        def __subclasscheck__(cls, other):
            return other is int

    class Local(metaclass=Meta):
        pass

    return (
        isinstance(1, Local),
        isinstance(2, (str, Local)),
        issubclass(int, Local),
        issubclass(str, Local),
    )


@case(both)
def metaclass_conflict(x, n):
    class One(type):
        pass

    class Two(type):
        pass

    class A(metaclass=One):
        pass

    class B(metaclass=Two):
        pass

    try:

        class C(A, B):
            pass

    except TypeError as error:
        return str(error)
    return C


@case(both)
def namespace_of_its_own(x, n):
    class Names(dict):
        def __setitem__(self, key, value):
            if not key.startswith("_"):
                self.setdefault("_order", []).append(key)
            super().__setitem__(key, value)

    class Meta(type):
        @classmethod
        def __prepare__(mcs, name, bases):
            return Names()

        def __new__(mcs, name, bases, namespace):
            made = super().__new__(mcs, name, bases, dict(namespace))
            made.order = namespace["_order"]
            return made

    class Local(metaclass=Meta):
        second = 2
        first = n

        def third(self):
            return x

    return Local.order, Local.first, Local().third()


@case(both)
def subclass_hook_with_effects(x, n):
    registry = {}

    class Plugin:
        def __init_subclass__(cls, /, name=None, **rest):
            super().__init_subclass__(**rest)
            registry[name or cls.__name__] = cls
            cls.order = len(registry)

    class One(Plugin):
        pass

    class Two(Plugin, name="second"):
        pass

    class Three(Two, name=n):
        pass

    return list(registry), One.order, Three.order, registry["second"] is Two, registry


@case(both)
def set_name_with_effects(x, n):
    log = []

    class Field:
        def __set_name__(self, owner, name):
            self.name = name
            self.owner = owner
            log.append((owner.__name__, name))

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.store.get(self.name, n)

        def __set__(self, instance, value):
            instance.store[self.name] = value

    class Local:
        first = Field()
        second = Field()

        def __init__(self):
            self.store = {}

    made = Local()
    made.first = x
    return made.first, made.second, log, Local.first.name, Local.first.owner is Local, made.store


@case(both)
def hook_that_raises(x, n):
    class Strict:
        def __init_subclass__(cls, **options):
            if not hasattr(cls, "wanted"):
                raise TypeError(f"{cls.__name__} lacks wanted")

    class Good(Strict):
        wanted = n

    try:

        class Bad(Strict):
            pass

    except TypeError as error:
        return str(error), Good.wanted
    return Bad


@case(both)
def class_decorators(x, n):
    def register(key):
        def decorate(cls):
            cls.key = key
            cls.run = lambda self: (self.key, x)
            return cls

        return decorate

    def replaced(cls):
        class Wrapper(cls):
            def base(self):
                return cls.__name__

        Wrapper.__name__ = "Wrapped" + cls.__name__
        return Wrapper

    @register(n)
    class First:
        pass

    @replaced
    @register("k")
    class Second:
        pass

    return First().run(), Second().run(), Second().base(), Second.__name__


@case(both)
def attributes_of_the_class_change(x, n):
    class Local:
        made = 0
        seen: ClassVar[list] = []

        def __init__(self):
            type(self).made += 1
            Local.seen.append(self.made)

    for _ in range(n + 1):
        Local()
    Local.extra = x
    del Local.made
    Local.method = lambda self, k: k + n
    return Local.seen, hasattr(Local, "made"), Local().method(1) if n > 5 else Local.extra, Local


@case(both)
def class_refers_to_itself(x, n):
    class Node:
        root = None
        children: ClassVar[list] = []

        def __init__(self, value):
            self.value = value

        def again(self):
            return Node(self.value + n)

        @classmethod
        def grow(cls):
            cls.children.append(cls(n))
            return __class__

    Node.root = Node(0)
    Node.grow()
    made = Node(x).again()
    return made, Node, type(made) is Node, Node.grow() is Node, Node.root.again().value


@case(both)
def cells_are_shared(x, n):
    total = 0

    class Counter:
        def add(self, by):
            nonlocal total
            total += by
            return total

        def read(self):
            return total

    one, two = Counter(), Counter()
    one.add(n)
    two.add(10)
    return one.read(), total, one.add, two.read


@case(both, then=lambda methods: (methods[0](5), methods[1](), methods[0](1), methods[1]()))
def cells_stay_shared_outside(x, n):
    total = n

    class Counter:
        def add(self, by):
            nonlocal total
            total += by

        def read(self):
            return total

    made = Counter()
    return made.add, made.read


@case(both)
def slots_and_their_errors(x, n):
    class Local:
        __slots__ = ("a", "b")
        c = n

        def __init__(self):
            self.a = x

    made = Local()
    found = []
    for name in ("b", "d", "c"):
        try:
            setattr(made, name, n)
        except AttributeError as error:
            found.append(str(error))
    del made.b
    return made.a, hasattr(made, "b"), found, Local.__slots__, hasattr(made, "__dict__")


@case(both)
def nested_classes(x, n):
    class Outer:
        size = n

        class Inner:
            value = 3

            def read(self):
                return Outer.size + self.value

        made = Inner()
        total = Inner.value + size

    return Outer.made.read(), Outer.total, Outer.Inner.__qualname__, Outer


@case(both)
def body_with_statements(x, n):
    class Local:
        names = []  # noqa: RUF012
        for step in range(n):
            names.append(f"field{step}")
        squares = {k: k * k for k in range(3)}
        if n > 1:
            big = True
        try:
            missing = unknown_name  # noqa: F821
        except NameError:
            missing = None
        with_x = x
        del step

    return (
        Local.names,
        Local.squares,
        getattr(Local, "big", False),
        Local.missing,
        Local.with_x,
        Local,
    )


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
    class Slotted(object):  # noqa: UP004
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
            a: list = []  # noqa: RUF012

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
def made_without_class_statement(x, n):
    Base = type("Base", (), {"scale": n, "run": lambda self: self.scale * x})
    Derived = type("Derived", (Base,), {"scale": 3})
    Late = types.new_class("Late", (Base,), {}, lambda space: space.update(late=n))
    return Base().run(), Derived().run(), Late.late, Late.__mro__[1] is Base, Late().run(), Derived


@case(both)
def bases_that_stand_for_others(x, n):
    class Real:
        value = n

    class Standing:
        def __mro_entries__(self, bases):
            return (Real,)

    class Local(Standing()):
        pass

    return Local.value, Local.__bases__ == (Real,), len(Local.__orig_bases__)


@case(both)
def class_getitem_and_call(x, n):
    class Table:
        def __class_getitem__(cls, key):
            return cls.__name__, key

        def __call__(self, y):
            return y + n

    return Table[n], Table()(x), callable(Table())


@case(both)
def comparison_without_hash(x, n):
    class Local:
        def __eq__(self, other):
            return isinstance(other, Local)

    try:
        {Local(): 1}
    except TypeError as error:
        refused = str(error)
    return Local() == Local(), Local() != 3, refused, Local.__hash__


@case(both)
def init_that_returns(x, n):
    class Local:
        def __init__(self, value):
            return value

    try:
        Local(n)
    except TypeError as error:
        return str(error), Local(None) is not None
    return x


@case(both)
def function_attributes(x, n):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) * n

        wrapper.calls = [n]
        return wrapper

    @decorate
    def program(y: int) -> int:
        """What it does."""
        return y + 1

    class Local:
        def method(self):
            """Its method."""

    names = program.__name__, program.__qualname__, program.__doc__, program.__module__
    methods = Local.method.__qualname__, Local().method.__name__, Local().method.__doc__
    return (
        program(x),
        names,
        program.calls,
        program.__wrapped__(x),
        methods,
        program.__annotations__,
    )


@case(both)
def functions_become_methods(x, n):
    class Local:
        value = n

    def method(self, y):
        return self.value * y

    made = Local()
    bound = method.__get__(made, Local)
    Local.method = method
    made.own = types.MethodType(method, made)
    unbound = method.__get__(None, Local)
    return bound(x), made.method(2), made.own(3), unbound is method, bound.__self__ is made


@case(both)
def cached_properties(x, n):
    calls = []

    class Local:
        @functools.cached_property
        def value(self):
            calls.append(n)
            return x * n

    made = Local()
    return made.value, made.value is made.value, calls, list(made.__dict__), Local


@case(both)
def break_inside_of_a_method(x, n):
    class Local:
        def run(self, y):
            y = y + n
            print(y.sum())
            return y * 2

    return Local().run(x), Local.__name__


@case(both)
def break_between_definition_and_use(x, n):
    class Local:
        count = n

        def run(self, y):
            return y * self.count

    made = Local()
    print(x.sum())
    Local.count += 1
    return made.run(x), Local().run(x), isinstance(made, Local)


@case(both)
def break_inside_of_a_class_body(x, n):
    class Local:
        before = n
        print(x.sum())
        after = before + 1

    return Local.before, Local.after, x


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
def class_kept_in_an_argument(x, n):
    class Local:
        value = n

    holder = {"cls": Local}
    holder["made"] = holder["cls"]()
    return holder, holder["made"].value


class Outside:
    """A base from outside; programs change it between calls."""

    value = 1
    registry: ClassVar[list] = []

    def __init_subclass__(cls, **options):
        super().__init_subclass__()
        cls.registry.append(cls.__name__)
        cls.given = options

    def run(self, y):
        return y * self.value


class Recording(type):
    """A metaclass from outside that keeps what it makes."""

    made: ClassVar[list] = []

    def __new__(mcs, name, bases, namespace):
        cls = super().__new__(mcs, name, bases, namespace)
        mcs.made.append(cls)
        return cls


def _base_changes():
    for value in (1, 2, 2, x_times):
        Outside.value = value
        yield (value if not callable(value) else 0,)
    Outside.value = 1
    Outside.registry.clear()


def x_times(self):
    return "a method now"


@case(_base_changes)
def base_from_outside_changes(n):
    class Local(Outside, flag=n):
        own = n

    made = Local()
    value = made.value
    return (value() if callable(value) else value), Local.own, Local.given, list(Outside.registry)


def _hook_changes():
    original = Outside.__dict__["__init_subclass__"]
    yield (1,)
    Outside.__init_subclass__ = classmethod(lambda cls, **options: setattr(cls, "given", "other"))
    yield (1,)
    Outside.__init_subclass__ = original
    yield (1,)


@case(_hook_changes)
def hook_from_outside_changes(n):
    class Local(Outside):
        pass

    return Local.given, Local().run(n)


@case(both, then=lambda cls: (cls is Recording.made.pop(), cls().read()))
def metaclass_from_outside_keeps_classes(x, n):
    class Local(metaclass=Recording):
        def read(self):
            return x * n

    return Local


def _special_methods_change():
    yield (1,)
    Outside.__len__ = lambda self: 7
    yield (1,)
    del Outside.__len__
    yield (1,)


@case(_special_methods_change)
def special_methods_of_the_base_change(n):
    class Local(Outside):
        pass

    try:
        return len(Local())
    except TypeError as error:
        return str(error)


def _special_items_change():
    yield (1,)
    Outside.__getitem__ = lambda self, place: place
    Outside.__add__ = lambda self, other: other
    yield (1,)
    del Outside.__getitem__, Outside.__add__
    yield (1,)


@case(_special_items_change)
def concatenation_of_the_base_changes(n):
    class Local(Outside):
        pass

    try:
        return operator.concat(Local(), [n])
    except TypeError as error:
        return str(error)


def decorated(cls):
    """A class decorator from outside."""
    cls.decorated = True
    Outside.registry.append(cls)
    return cls


@case(both, then=lambda cls: (Outside.registry.pop() is cls, cls.decorated))
def decorator_from_outside(x, n):
    @decorated
    class Local:
        value = n

    return Local


@case(both)
def init_and_new_get_wrong_arguments(x, n):
    class Plain:
        pass

    class WithNew:
        def __new__(cls, *args):
            return super().__new__(cls, *args)

    class WithInit:
        def __init__(self, *args):
            super().__init__(*args)

    found = []
    for attempt in (
        lambda: Plain(n),
        lambda: WithNew(n),
        lambda: WithInit(n),
        lambda: Plain().__init__(n),
    ):
        try:
            attempt()
        except TypeError as error:
            found.append(str(error))
    return found


@case(both)
def new_that_makes_another_class(x, n):
    class Base:
        def __new__(cls, value):
            if value == 1:
                return object.__new__(Derived)
            return [value]

    class Derived(Base):
        def __init__(self, value):
            self.value = value

    made = Base(n)
    return made if n != 1 else (type(made) is Derived, made.value)


@case(both)
def any_descriptor_as_a_hook(x, n):
    class Hook:
        def __get__(self, instance, owner=None):
            return lambda name: (name, n)

    class Local:
        __getattr__ = Hook()

    class Refusing:
        value = property(doc="nothing to read")

    found = []
    for attempt in (lambda: Refusing().value, lambda: setattr(Refusing(), "value", 1)):
        try:
            attempt()
        except AttributeError as error:
            found.append(str(error))
    return Local().anything, found


@case(both)
def class_of_an_object_changes(x, n):
    class One:
        def run(self):
            return "one", n

    class Two:
        def run(self):
            return "two", x

    made = One()
    before = made.run()
    made.__class__ = Two
    try:
        made.__class__ = int
    except TypeError as error:
        return before, made.run(), type(made) is Two, str(error)
    return made


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


@case(both)
def unpacking_and_subscripts_refused(x, n):
    class Local:
        pass

    def unpack():
        a, b = Local()
        return a, b

    def store():
        Local()[0] = n

    def delete():
        del Local()[0]

    found = []
    for attempt in (
        unpack,
        store,
        delete,
        lambda: Local()[0],
        lambda: Local[0],
        lambda: iter(Local()),
    ):
        try:
            attempt()
        except TypeError as error:
            found.append(str(error))
    return found
