"""What changes between calls of one program: everything that a guard is about, one at a time.

Each case is called, changed, called, changed back, and called again.
"""

from __future__ import annotations

import abc
import builtins
import functools
import math
import sys
import types

from conformance.declare import scenario, t


class Bag:
    """Attributes of an object of the program."""

    def __init__(self, **values):
        self.__dict__.update(values)


class Base(Bag):
    level = 1

    def run(self, x):
        return x + self.level


class First(Base):
    def run(self, x):
        return super().run(x) * 2


class Second(Base):
    level = 5

    def run(self, x):
        return super().run(x) * 3


class Both(First, Second):
    pass


class Plain(Bag):
    pass


class Descriptor:
    def __get__(self, instance, owner=None):
        return 7


def _changing(owner_of, name, value, delete=False):
    """Sets around a change of an attribute of what `owner_of(state)` gives."""

    def sets(state=None):
        owner = owner_of(state)
        missing = object()
        own = owner.__dict__.get(name, missing) if hasattr(owner, "__dict__") else missing
        before = own if own is not missing or delete else getattr(owner, name, missing)
        yield (t(2, 3),)
        if value is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, value(owner) if isinstance(value, _Computed) else value)
        try:
            yield (t(2, 3),)
            yield (t(2, 3),)
        finally:
            if before is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        yield (t(2, 3),)

    return sets


class _Computed:
    def __init__(self, function):
        self.function = function

    def __call__(self, owner):
        return self.function(owner)


def _state(state):
    return state


# Classes.


@scenario(_changing(lambda state=None: Both, "__bases__", (Second, First)))
def order_of_bases():
    made = Both()

    def program(x):
        return made.run(x), isinstance(made, First), made.level

    return program, made


@scenario(_changing(lambda state=None: Second, "level", 9))
def attribute_of_a_base():
    made = Both()

    def program(x):
        return made.run(x)

    return program, made


@scenario(_changing(_state, "__class__", Second))
def class_of_an_object():
    made = First()

    def program(x):
        return made.run(x), type(made) is First, isinstance(made, Second)

    return program, made


@scenario(_changing(lambda state=None: Plain, "__bases__", (Base,)))
def base_appears():
    class Inner(Plain):
        pass

    made = Inner()

    def program(x):
        return isinstance(made, Base), issubclass(Inner, Base), x + getattr(made, "level", 0)

    return program, made


@scenario(_changing(lambda state=None: Descriptor, "__set__", lambda self, instance, value: None))
def descriptor_becomes_one_of_data():
    class Holder:
        value = Descriptor()

    made = Holder()
    made.__dict__["value"] = 2

    def program(x):
        return x * made.value

    return program, made


@scenario(_changing(lambda state=None: type(state), "double", property(lambda self: 3)))
def property_for_a_method():
    class Holder:
        @property
        def double(self):
            return 2

    made = Holder()

    def program(x):
        return x * made.double

    return program, made


@scenario(
    _changing(lambda state=None: type(state), "value", property(lambda s: 1, lambda s, v: None))
)
def property_before_a_write():
    class Holder:
        pass

    made = Holder()

    def program(x):
        made.value = x.shape[0]
        return x * made.value, sorted(made.__dict__)

    return program, made


@scenario(
    _changing(lambda state=None: type(state).double.fget, "__code__", (lambda self: 5).__code__)
)
def code_of_a_property():
    class Holder:
        @property
        def double(self):
            return 2

    made = Holder()

    def program(x):
        return x * made.double

    return program, made


@scenario(_changing(lambda state=None: type(state).made.__func__, "__defaults__", (4,)))
def defaults_of_a_class_method():
    class Holder:
        @classmethod
        def made(cls, n=2):
            return n

        @staticmethod
        def other(n=1):
            return n

    made = Holder()

    def program(x):
        return x * made.made() + made.other()

    return program, made


def _special(name, function):
    return _changing(lambda state=None: type(state), name, function)


def _holder():
    class Holder:
        def __init__(self):
            self.items = [1, 2]

        def __len__(self):
            return len(self.items)

        def __getitem__(self, n):
            return self.items[n]

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

        def __call__(self, x):
            return x + 1

        def __enter__(self):
            return 1

        def __exit__(self, *error):
            return None

    return Holder()


def _use(made):
    def program(x):
        with made as entered:
            total = sum(made) + len(made) + bool(made)
        total += (made == 1) + (1 in made) + {made: 2}[made] + entered
        try:
            total += made.missing
        except AttributeError:
            total += 100
        return made(x) * total

    return program, made


@scenario(_special("__len__", lambda self: 1))
def length_of_a_class():
    return _use(_holder())


@scenario(_special("__bool__", lambda self: False))
def truth_appears():
    return _use(_holder())


@scenario(_special("__getitem__", lambda self, n: [4][n]))
def subscript_of_a_class():
    return _use(_holder())


@scenario(_special("__iter__", lambda self: iter([7])))
def iteration_appears():
    return _use(_holder())


@scenario(_special("__contains__", lambda self, item: False))
def membership_appears():
    return _use(_holder())


@scenario(_special("__eq__", lambda self, other: self is other))
def equality_of_a_class():
    return _use(_holder())


@scenario(_special("__call__", lambda self, x: x - 1))
def call_of_a_class():
    return _use(_holder())


@scenario(_special("__enter__", lambda self: 3))
def entering_of_a_class():
    return _use(_holder())


@scenario(_special("__getattr__", lambda self, name: len(name)))
def missing_attribute_appears():
    return _use(_holder())


@scenario(_special("__getattribute__", lambda self, name: object.__getattribute__(self, name)))
def reading_of_attributes_appears():
    return _use(_holder())


@scenario(_special("__setattr__", lambda self, name, value: None))
def writing_of_attributes_appears():
    made = _holder()

    def program(x):
        made.size = x.shape[0]
        return x, "size" in made.__dict__

    return program, made


@scenario(_special("__radd__", lambda self, other: other - 1))
def operator_appears():
    made = _holder()

    def program(x):
        try:
            return x + made
        except TypeError:
            return x

    return program, made


@scenario(lambda state=None: _registered(state))
def class_is_registered():
    class Registered(abc.ABC):  # noqa: B024  # only registered classes are of it
        pass

    class Holder:
        pass

    made = Holder()

    def program(x):
        return x + isinstance(made, Registered), issubclass(Holder, Registered)

    return program, (Registered, Holder)


def _registered(state):
    registry, cls = state
    yield (t(2, 3),)
    registry.register(cls)
    yield (t(2, 3),)


# Functions.


def helper(x, n=2, *, k=3):
    return x * n + k


@scenario(_changing(lambda state=None: helper, "__code__", (lambda x, n=0, *, k=0: x - n).__code__))
def code_of_a_helper():
    def program(x):
        return helper(x), list(map(helper, [x]))

    return program


@scenario(_changing(lambda state=None: helper, "__defaults__", (5,)))
def defaults_of_a_helper():
    def program(x):
        return functools.partial(helper, x)()

    return program


@scenario(_changing(lambda state=None: helper, "__kwdefaults__", {"k": 9}))
def keyword_defaults_of_a_helper():
    def program(x):
        return helper(x, **{})

    return program


@scenario(lambda state=None: _in_place_defaults())
def keyword_defaults_changed_in_place():
    def program(x):
        return helper(x)

    return program


def _in_place_defaults():
    yield (t(2, 3),)
    helper.__kwdefaults__["k"] = 8
    yield (t(2, 3),)
    helper.__kwdefaults__["k"] = 3
    yield (t(2, 3),)


def with_list(x, found=[1]):  # noqa: B006  # what is tested
    return x + sum(found)


@scenario(lambda state=None: _default_list())
def mutable_default_changed_from_outside():
    def program(x):
        return with_list(x)

    return program


def _default_list():
    yield (t(2, 3),)
    with_list.__defaults__[0].append(2)
    yield (t(2, 3),)
    with_list.__defaults__[0].pop()
    yield (t(2, 3),)


@scenario(_changing(_state, "__defaults__", (7,)))
def defaults_of_the_program():
    def program(x, n=2):
        return x * n

    return program, program


@scenario(_changing(_state, "__kwdefaults__", {"n": 7}))
def keyword_defaults_of_the_program():
    def program(x, *, n=2):
        return x * n

    return program, program


@scenario(_changing(_state, "__code__", (lambda x: x - 5).__code__))
def code_of_the_program():
    def program(x):
        return x * 2

    return program, program


@scenario(_changing(lambda state=None: state[0], "cell_contents", 5))
def cell_of_the_program():
    n = 2

    def program(x):
        return x * n

    return program, program.__closure__


@scenario(_changing(lambda state=None: state[0], "cell_contents", 2.0))
def type_in_a_cell():
    n = 2

    def program(x):
        return str(n), x

    return program, program.__closure__


# Modules of Python and builtins.


@scenario(_changing(lambda state=None: builtins, "len", lambda value: 77))
def builtin_replaced():
    def program(x):
        return x * len([1, 2])

    return program


@scenario(_changing(lambda state=None: sys.modules[__name__], "abs", lambda value: 50, delete=True))
def builtin_hidden_by_a_global():
    def program(x):
        return x * abs(-2)

    return program


@scenario(lambda state=None: _replaced_module())
def module_replaced_in_sys_modules():
    def program(x):
        import conformance_changes_made as made

        return x * made.FACTOR

    return program


def _replaced_module():
    name = "conformance_changes_made"
    modules = [types.ModuleType(name), types.ModuleType(name)]
    for n, module in enumerate(modules):
        module.FACTOR = n + 2
    try:
        for module in (*modules, modules[0]):
            sys.modules[name] = module
            yield (t(2, 3),)
        modules[0].FACTOR = 9
        yield (t(2, 3),)
    finally:
        del sys.modules[name]


@scenario(lambda state=None: _missing_module())
def module_appears():
    def program(x):
        try:
            import conformance_changes_absent as made
        except ImportError as error:
            return x, str(error)
        return x * made.FACTOR

    return program


def _missing_module():
    name = "conformance_changes_absent"
    yield (t(2, 3),)
    module = types.ModuleType(name)
    module.FACTOR = 5
    sys.modules[name] = module
    try:
        yield (t(2, 3),)
    finally:
        del sys.modules[name]
    yield (t(2, 3),)


@scenario(_changing(lambda state=None: math, "pi", 3))
def constant_of_a_module():
    def program(x):
        return x * math.pi

    return program
