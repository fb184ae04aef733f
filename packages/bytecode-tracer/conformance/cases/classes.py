"""Classes: methods, properties, inheritance, special methods, instances made while tracing."""

from __future__ import annotations

import abc

from conformance.declare import case, scenario, t, with_x


class Scaler:
    bias = 1

    def __init__(self, scale):
        self.scale = scale
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * self.scale + self.bias

    def method(self, x, *, by=1):
        return x * self.scale * by

    @property
    def double(self):
        return self.scale * 2

    @double.setter
    def double(self, value):
        self.scale = value / 2

    @staticmethod
    def plus_one(x):
        return x + 1

    @classmethod
    def make(cls, scale):
        return cls(scale)


class Wide(Scaler):
    bias = 2

    def __call__(self, x):
        return super().__call__(x) * 10

    def method(self, x, *, by=1):
        return super().method(x, by=by + 1)


class Left(Scaler):
    def method(self, x, *, by=1):
        return "left", super().method(x, by=by)


class Right(Scaler):
    def method(self, x, *, by=1):
        return "right", super().method(x, by=by)


class Diamond(Left, Right):
    pass


@case(lambda: [(t(2), Scaler(2)), (t(2), Scaler(3)), (t(2), Wide(2)), (t(2), Scaler(2.5))])
def callable_object_as_argument(x, scaler):
    return scaler(x), scaler.calls


def _scaler():
    made = Scaler(2)
    yield (t(2), made)
    made.scale = 5
    yield (t(2), made)
    made.bias = 7
    yield (t(2), made)
    Scaler.bias = 9
    yield (t(2), Scaler(1))
    yield (t(2), made)


@case(_scaler)
def attributes_change(x, scaler):
    return x * scaler.scale + scaler.bias


def _patched():
    yield (t(2), Scaler(2))
    Scaler.method = lambda self, x, *, by=1: x - self.scale
    yield (t(2), Scaler(2))
    made = Scaler(2)
    made.method = lambda x: x * 100
    yield (t(2), made)


@case(_patched)
def method_replaced(x, scaler):
    return scaler.method(x)


def _class_changed():
    made = Scaler(3)
    yield (t(2), made)
    made.__class__ = Wide
    yield (t(2), made)


@case(_class_changed)
def class_of_instance_changed(x, scaler):
    return scaler.method(x)


@case(with_x(1, 2))
def instance_made_inside(x, n):
    scaler = Scaler(n)
    y = scaler(x)
    scaler.scale += 1
    return y, scaler(x), scaler.calls


@case(with_x(1, 2))
def instance_returned(x, n):
    made = Scaler(n)
    made.extra = x
    return made


@case(lambda: [(t(2), Scaler(2)), (t(2), Scaler(4)), (t(2), Wide(2))])
def property_read_and_written(x, scaler):
    before = scaler.double
    scaler.double = before + 6
    return x * scaler.scale, scaler.double


@case(with_x(1, 2))
def read_only_property(x, n):
    class Local:
        @property
        def value(self):
            return n

    made = Local()
    try:
        made.value = 3
    except AttributeError as error:
        return str(error), made.value * x


@case(lambda: [(t(2), Scaler), (t(2), Wide), (t(2), Left)])
def class_as_argument(x, cls):
    made = cls.make(3)
    return cls.plus_one(x), made.method(x), type(made) is cls, cls.__name__


@case(lambda: [(t(2), Diamond(2)), (t(2), Left(2)), (t(2), Right(3))])
def method_resolution_order(x, scaler):
    return scaler.method(x), [cls.__name__ for cls in type(scaler).__mro__]


@case(with_x(1, 2))
def super_in_init(x, n):
    class Local(Scaler):
        def __init__(self, scale):
            super().__init__(scale * 2)
            self.own = scale

        def explicit(self, y):
            return super(Local, self).method(y)

    made = Local(n)
    return made.explicit(x), made.scale, made.own


@case(lambda: [(t(2), Scaler(2).method), (t(2), Scaler(3).method), (t(2), Wide(2).method)])
def bound_method_as_argument(x, method):
    return method(x, by=2), method.__name__, method.__self__.scale


@case(lambda: [(t(2), Scaler(2)), (t(2), Wide(3))])
def unbound_method(x, scaler):
    method = scaler.method
    return Scaler.method(scaler, x), method.__func__(scaler, x), method == scaler.method


class Money:
    def __init__(self, amount):
        self.amount = amount

    def __add__(self, other):
        return Money(self.amount + (other.amount if isinstance(other, Money) else other))

    __radd__ = __add__

    def __mul__(self, other):
        if not isinstance(other, int | float):
            return NotImplemented
        return Money(self.amount * other)

    def __neg__(self):
        return Money(-self.amount)

    def __eq__(self, other):
        return isinstance(other, Money) and self.amount == other.amount

    def __lt__(self, other):
        return self.amount < other.amount

    def __hash__(self):
        return hash(self.amount)

    def __bool__(self):
        return self.amount != 0

    def __len__(self):
        return int(self.amount)

    def __repr__(self):
        return f"Money({self.amount})"

    def __int__(self):
        return int(self.amount)

    def __float__(self):
        return float(self.amount)

    def __index__(self):
        return int(self.amount)

    def __contains__(self, item):
        return item == self.amount

    def __format__(self, spec):
        return f"<{self.amount:{spec}}>"


@case(lambda: [(t(2), Money(2)), (t(2), Money(3)), (t(2), Money(2.5))])
def arithmetic_methods(x, money):
    total = sum([money, Money(1), 5])
    return (total * 2).amount, (-total).amount, (1 + money).amount, x * total.amount


@case(lambda: [(Money(2),), (Money(3),), (Money(0),)])
def unsupported_operand(money):
    return money * "text"


@case(lambda: [(t(2), Money(2)), (t(2), Money(0)), (t(2), Money(3))])
def truth_and_length(x, money):
    return (x if money else -x), bool(money), len(money), not money


@case(lambda: [(t(2), Money(2)), (t(2), Money(3))])
def comparison_methods(x, money):
    other = Money(2)
    return money == other, money != other, money < other, money is other, sorted([money, other]), x


@case(lambda: [(t(2), Money(2)), (t(2), Money(3))])
def hash_and_membership(x, money):
    table = {Money(2): "two", money: "money"}
    return len(table), 2 in money, money in [Money(2)], table[money], x


@case(lambda: [(t(4), Money(2)), (t(4), Money(3))])
def conversions(x, money):
    return int(money), float(money), [1, 2, 3, 4][money], range(money), str(money), f"{money:>5}"


class Magic:
    def __init__(self, **values):
        self.values = values
        self.log = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self.values[name]


@case(lambda: [(t(2), Magic(a=1)), (t(2), Magic(a=2)), (t(2), Magic(a=t(2)))])
def getattr_method(x, magic):
    return x * magic.a, hasattr(magic, "_no"), getattr(magic, "_no", 5)


class Recorder:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        if name != "log":
            self.log = [*getattr(self, "log", []), name]

    def __delattr__(self, name):
        object.__delattr__(self, name)
        self.log = [*self.log, f"-{name}"]


@case(with_x(1, 2))
def setattr_and_delattr_methods(x, n):
    made = Recorder()
    made.a = n
    made.b = x
    del made.a
    return made


class Watched:
    def __init__(self, value):
        self.value = value

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        return found * 2 if name == "value" else found


@case(lambda: [(t(2), Watched(2)), (t(2), Watched(3)), (t(2), Watched(t(2)))])
def getattribute_method(x, watched):
    return x * watched.value


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@case(lambda: [(t(2), Slots(1)), (t(2), Slots(2)), (t(2), Slots(t(2)))])
def slots(x, made):
    made.b = made.a * x
    try:
        made.c = 1
    except AttributeError as error:
        return made.b, str(error)


class Base(abc.ABC):
    @abc.abstractmethod
    def run(self, x): ...

    def twice(self, x):
        return self.run(self.run(x))


class Concrete(Base):
    def run(self, x):
        return x + 1


@case()
def abstract_base(x):
    try:
        Base()
    except TypeError as error:
        message = str(error)
    return Concrete().twice(x), message, isinstance(Concrete(), Base)


@case(with_x(1, 2))
def class_defined_inside(x, n):
    class Local:
        kind = "local"

        def __init__(self, y):
            self.y = y

        def run(self, k):
            return self.y * k + n

    return Local(x).run(2), Local.kind, Local.__name__


@case(with_x(1, 2))
def class_built_by_type(x, n):
    Made = type("Made", (Scaler,), {"bias": n, "extra": lambda self, y: y + self.bias})
    made = Made(2)
    return made(x), made.extra(x), Made.__name__, issubclass(Made, Scaler)


@case(lambda: [(t(2), Scaler(2)), (t(2), Wide(2)), (t(2), 3), (t(2), Scaler)])
def type_tests(x, value):
    flags = isinstance(value, Scaler), type(value) is Scaler, isinstance(value, int | Wide)
    return flags, issubclass(type(value), (Scaler, int)), x


@case(lambda: [(t(2), Scaler(2)), (t(2), Wide(3))])
def attributes_by_name(x, scaler):
    setattr(scaler, "new", x)
    names = sorted(vars(scaler))
    has = hasattr(scaler, "scale"), hasattr(scaler, "gone")
    delattr(scaler, "calls")
    return names, has, scaler.__dict__["scale"], getattr(scaler, "calls", "gone")


@case(lambda: [(t(2), Scaler(2)), (t(2), Scaler(2))])
def attribute_deleted(x, scaler):
    del scaler.scale
    try:
        return scaler.scale
    except AttributeError as error:
        return str(error), x


class Counting:
    instances = 0

    def __new__(cls, *args):
        cls.instances += 1
        made = super().__new__(cls)
        made.number = cls.instances
        return made

    def __init__(self, value):
        self.value = value


@case(with_x(1, 2, 3))
def new_method(x, n):
    first, second = Counting(n), Counting(x)
    return first.number, second.number, second.value


@case(with_x(1, 2))
def chained_calls(x, n):
    class Builder:
        def __init__(self):
            self.steps = []

        def add(self, step):
            self.steps.append(step)
            return self

    return Builder().add(n).add(x).add("end").steps


class Node:
    def __init__(self, value, next_=None):
        self.value, self.next = value, next_


@case(lambda: [(t(2), Node(1, Node(2))), (t(2), Node(3)), (t(2), Node(1, Node(2, Node(5))))])
def linked_list(x, node):
    while node is not None:
        x = x + node.value
        node = node.next
    return x


def _cycle():
    first = Node(1)
    first.next = Node(2, first)
    return [(t(2), first), (t(3), first)]


@case(_cycle)
def cyclic_objects(x, node):
    node.next.next.value += 1
    return x * node.value


@case(lambda: [(t(2), Node(1)), (t(2), Node(t(2)))])
def swapped_attributes(x, node):
    node.value, node.next = node.next, node.value
    return node.next * x


@scenario(lambda s: [(t(2),), (t(2),), (t(3),)])
def bound_method_compiled():
    made = Scaler(2)
    made.double = 6
    return made.method, made


@scenario(lambda s: [(t(2),), (t(2),), (t(3),)])
def callable_object_compiled():
    made = Wide(2)
    return made, made


@case(with_x(1, 2))
def private_names(x, n):
    class Local:
        def __init__(self):
            self.__hidden = n

        def read(self):
            return self.__hidden

    made = Local()
    return made.read() * x, list(vars(made))


@case(lambda: [(Scaler(2), Scaler(3)), (Wide(1), Scaler(2))])
def two_instances(a, b):
    a.scale, b.scale = b.scale, a.scale
    return a(t(2)), b(t(2))


def _shared():
    made = Scaler(2)
    return [(made, made), (made, Scaler(3)), (Scaler(3), made)]


@case(_shared)
def same_instance_twice(a, b):
    a.scale = 10
    return t(2) * b.scale, a is b


class Missing:
    def __class_getitem__(cls, item):
        return item, cls.__name__


@case(with_x(1, 2))
def class_getitem(x, n):
    return Missing[n], Missing[int, x.dim()]


class Registered:
    kinds = []

    def __init_subclass__(cls, tag=None, **rest):
        super().__init_subclass__(**rest)
        Registered.kinds.append((cls.__name__, tag))


@case(with_x("a", "b"))
def init_subclass(x, tag):
    class Local(Registered, tag=tag):
        pass

    return x, len(Registered.kinds), Registered.kinds[-1]


@case(with_x(1, 2))
def class_body_statements(x, n):
    class Local:
        temporary = n
        table = {}
        for index in range(n):
            table[index] = temporary * index
        if n == 2:
            extra = "two"
        del temporary, index

    return x, Local.table, hasattr(Local, "temporary"), getattr(Local, "extra", None)


class Callable:
    def __init__(self, size):
        self.size = size

    def __call__(self, x):
        return x * self.size

    def __len__(self):
        return self.size

    def __index__(self):
        return self.size

    def __repr__(self):
        return f"of size {self.size}"


@case(lambda: [(t(3), Callable(2)), (t(3), Callable(3)), (t(3), Callable(0))])
def special_methods_of_a_callable(x, made):
    made.size -= 1 if made.size else 0
    return made(x), bool(made), repr(made), [10, 20, 30][made], not made


class Answering:
    def __init__(self, answer):
        self.answer = answer

    def __bool__(self):
        return self.answer


class Measuring:
    def __init__(self, answer):
        self.answer = answer

    def __len__(self):
        return self.answer


@case(
    lambda: [
        (t(2), kind(answer))
        for kind in (Answering, Measuring)
        for answer in (True, False, 0, 2, -1, 1.5, "", None)
    ]
)
def truth_of_odd_answers(x, made):
    return x + 1 if made else x - 1


class Numbered:
    count = 0
    last = None

    def __init__(self):
        Numbered.count += 1
        self.number = self.count
        type(self).last = self.number


class NumberedMore(Numbered):
    pass


@case(with_x(1, 2, 3))
def instances_counted_by_class(x, n):
    made = [Numbered() for _ in range(n)] + [NumberedMore()]
    return (
        x * made[-1].number,
        [m.number for m in made],
        Numbered.last,
        NumberedMore.last,
        vars(made[0]),
    )


@case(with_x(1, 2), then=lambda result: (result, Numbered.last, NumberedMore.last))
def class_data_set(x, n):
    Numbered.last = x * n
    NumberedMore.last = [n]
    super_reads = super(NumberedMore, NumberedMore).last is Numbered.last
    return Numbered.last, NumberedMore().last, super_reads, getattr(Numbered, "last") is not None


def classes_changed():
    Numbered.last = 1
    yield (t(2), 1)
    Numbered.last = property(lambda self: 5)
    yield (t(2), 2)
    Numbered.last = None
    yield (t(2), 3)


@case(classes_changed)
def class_data_that_was_a_property(x, n):
    Numbered.last = n
    return x * Numbered().number, Numbered.last


@case(with_x(1, 2))
def class_data_around_a_break(x, n):
    Numbered.last = n
    print(x.sum())
    Numbered.last = [Numbered.last, n]
    return x, Numbered.last
