"""What defining a class calls: metaclasses, hooks, decorators and bases from outside."""

from __future__ import annotations

import operator
import types
from typing import ClassVar

from conformance.declare import case, with_x

both = with_x(1, 2, 1)


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
