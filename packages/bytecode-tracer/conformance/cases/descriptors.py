"""Descriptors, cached properties, metaclasses."""

from __future__ import annotations

import functools

from conformance.declare import case, t, with_x


class Positive:
    def __set_name__(self, owner, name):
        self.slot = f"_{name}"

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.slot)

    def __set__(self, instance, value):
        if value < 0:
            raise ValueError(f"{self.slot} is negative")
        setattr(instance, self.slot, value)


class Doubled:
    def __get__(self, instance, owner):
        return "class" if instance is None else instance.value * 2


class Holder:
    width = Positive()
    doubled = Doubled()

    def __init__(self, width, value=1):
        self.width = width
        self.value = value

    @functools.cached_property
    def area(self):
        self.computed = getattr(self, "computed", 0) + 1
        return self.width * 10


@case(lambda: [(t(2), Holder(2)), (t(2), Holder(3)), (t(2), Holder(2.5))])
def data_descriptor(x, holder):
    holder.width += 1
    return x * holder.width, holder._width


@case(with_x(1, -1, 2))
def descriptor_raises(x, n):
    try:
        return Holder(n).width * x
    except ValueError as error:
        return str(error)


@case(lambda: [(t(2), Holder(1, 2)), (t(2), Holder(1, t(2))), (t(2), Holder(1, 5))])
def non_data_descriptor(x, holder):
    first = holder.doubled
    holder.__dict__["doubled"] = "own"
    return first, holder.doubled, Holder.doubled, x


@case(lambda: [(t(2), Holder(2)), (t(2), Holder(3))])
def cached_property(x, holder):
    return x * holder.area + holder.area, holder.computed, "area" in vars(holder)


def _cached_before():
    holder = Holder(2)
    yield (t(2), holder)
    yield (t(2), holder)
    holder.__dict__["area"] = 7
    yield (t(2), holder)
    del holder.__dict__["area"]
    holder.width = 5
    yield (t(2), holder)


@case(_cached_before)
def cached_property_changes(x, holder):
    return x * holder.area


@case(with_x(1, 2))
def cached_tensor_property(x, n):
    class Local:
        @functools.cached_property
        def table(self):
            return x * n

    made = Local()
    return made.table is made.table, made.table


class Delegate:
    def __init__(self, name):
        self.name = name

    def __get__(self, instance, owner):
        return functools.partial(getattr(owner, "helper"), self.name)


class WithDelegate:
    run = Delegate("run")

    @staticmethod
    def helper(name, x):
        return name, x * 2


@case()
def descriptor_returns_partial(x):
    return WithDelegate().run(x)


class ClassProperty:
    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner):
        return self.function(owner)


class Registry:
    items = [1, 2]

    @ClassProperty
    def total(cls):
        return sum(cls.items)


def _registry():
    yield (t(2),)
    Registry.items.append(5)
    yield (t(2),)
    Registry.items = [100]
    yield (t(2),)


@case(_registry)
def class_property(x):
    return x * Registry.total


class Meta(type):
    created = []

    def __new__(mcs, name, bases, namespace, **options):
        made = super().__new__(mcs, name, bases, namespace)
        made.options = options
        return made

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        Meta.created.append(cls.__name__)
        return made

    def __len__(cls):
        return 7

    def __getitem__(cls, key):
        return cls.__name__, key

    def __iter__(cls):
        return iter([cls.__name__, 1])

    def __contains__(cls, item):
        return item == 7

    @property
    def tag(cls):
        return cls.__name__.lower()

    def __instancecheck__(cls, instance):
        return isinstance(instance, int)


class Made(metaclass=Meta, level=3):
    def __init__(self, value):
        self.value = value


@case(with_x(1, 2))
def metaclass_call(x, n):
    made = Made(n)
    return made.value * x, len(Meta.created), Made.options


@case(with_x(1, "a"))
def metaclass_methods(x, key):
    return len(Made), Made[key], list(Made), 7 in Made, Made.tag, isinstance(key, Made), x


@case(with_x(1, 2))
def metaclass_used_inside(x, n):
    class Local(Made, level=n):
        pass

    return Local.options, type(Local) is Meta, Local.tag, Local(x).value


class Singleton(type):
    instances = {}

    def __call__(cls, *args):
        if cls not in cls.instances:
            cls.instances[cls] = super().__call__(*args)
        return cls.instances[cls]


class Only(metaclass=Singleton):
    def __init__(self):
        self.uses = 0


@case(lambda: [(t(2),), (t(2),), (t(3),)])
def singleton(x):
    only = Only()
    only.uses += 1
    return x * only.uses, Only() is only


@case(lambda: [(t(2), Holder(2)), (t(2), Holder(3))])
def descriptor_protocol_by_hand(x, holder):
    descriptor = type(holder).__dict__["width"]
    descriptor.__set__(holder, 9)
    return descriptor.__get__(holder, Holder) * x, Holder.width is descriptor


@case(with_x(1, 2))
def property_object(x, n):
    def read(self):
        return self.hidden * n

    class Local:
        hidden = 2
        shown = property(read, doc="shown")

    return Local().shown * x, Local.shown.__doc__, Local.shown.fget is read


@case(with_x(1, 2))
def method_wrappers(x, n):
    class Local:
        @staticmethod
        def static(y):
            return y + n

        @classmethod
        def cls(cls, y):
            return cls.static(y) * 2

        lifted = staticmethod(lambda y: y - n)

    return Local.static(x), Local().cls(x), Local.lifted(x), Local().lifted(x)


class Described(property):
    """A property that is made with more than its functions."""

    def __init__(self, getter, unit="m"):
        super().__init__(getter, None, None, f"in {unit}")


@case(lambda: [(t(2), "m"), (t(2), "km"), (t(3), "m")])
def property_class_made_in_call(x, unit):
    made = Described(lambda self: x * 2, unit)
    return isinstance(made, property), made.fget(None), made.__get__(None, int) is made


class Shown:
    """A descriptor that shows another on the class, as torch.distributions do."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __get__(self, instance, owner=None):
        if instance is None:
            return Described(self.wrapped)
        return self.wrapped(instance)


class Showing:
    @Shown
    def value(self):
        return 3


@case(lambda: [(t(2),), (t(3),)])
def property_shown_on_class(x):
    shown = Showing.value
    return type(shown), shown.fget(Showing()), Showing().value * x, isinstance(shown, property)
