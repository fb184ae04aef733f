"""Classes that the compiled program itself defines, uses and returns."""

from __future__ import annotations

import functools
import types
from typing import ClassVar

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
def class_kept_in_an_argument(x, n):
    class Local:
        value = n

    holder = {"cls": Local}
    holder["made"] = holder["cls"]()
    return holder, holder["made"].value


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
