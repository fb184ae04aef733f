"""What the interpreter asks of classes and objects, in corners: checks, descriptors, types."""

from __future__ import annotations

import builtins
import copy
import inspect
import types
import typing

import torch

from conformance.declare import case, scenario, t, with_x


class Base:
    msg = "base"

    def double(self, x):
        return x * 2


class Bases:
    """Stands for a class to `isinstance`."""

    def __init__(self, bases):
        self.__bases__ = bases


class OfBases:
    def __init__(self, cls):
        self.__class__ = cls

    __class__ = None


@case(with_x(0, 1))
def objects_that_stand_for_classes(x, n):
    upper = Bases(())
    lower = Bases((upper,))
    made = OfBases((upper, lower)[n])
    return x, isinstance(made, upper), isinstance(made, lower), issubclass(lower, upper)


@case(with_x(1, "a", None))
def checks_by_parts_of_a_union(x, n):
    class Meta(type):
        def __instancecheck__(cls, instance):
            return 1 / 0

    union = int | Meta("Raises", (), {})
    try:
        return x, isinstance(n, union)
    except ZeroDivisionError:
        return x, "asked"


@case(with_x(1, 2))
def classes_of_bound_methods(x, n):
    made = object()
    kinds = [
        type(made.__str__),
        type(n.__add__),
        type([].append),
        type("".join),
        type(Base().double),
    ]
    return x, [kind.__name__ for kind in kinds], [3].append.__qualname__, {}.pop.__qualname__


@scenario(lambda state: [(t(2),), (t(3),)])
def a_builtin_function_as_a_method(x=None):
    class Holder:
        pass

    def program(x):
        state.method = types.MethodType(max, state)
        torch.is_grad_enabled()
        return x, state.method.__self__ is state

    state = Holder()
    return program, state


@case(with_x("dict", "none"))
def vars_of_what_defines_its_dict(x, n):
    class Own:
        __dict__ = property(lambda self: {"a": n})

    return x, vars(Own())


@case(with_x(0, 1))
def attribute_names_that_are_no_text(x, n):
    try:
        return getattr(builtins if n else Base, 1)
    except TypeError as error:
        return x, str(error)


class Binding:
    """A descriptor that binds itself to the class."""

    def __init__(self, function):
        self.function = function

    def __call__(self, cls):
        if hasattr(self.function, "__get__"):
            return self.function.__get__(cls, cls)()
        return self.function(cls)

    def __get__(self, instance, owner=None):
        return types.MethodType(self, type(instance) if owner is None else owner)


@case(with_x(1, 2))
def class_methods_of_descriptors(x, n):
    class Made:
        @classmethod
        @Binding
        def first(cls):
            return cls

        @Binding
        @classmethod
        def second(cls):
            return cls

        @Binding
        @Binding
        def third(cls):
            return cls

    found = [Made.first() is Made, Made().second() is Made, Made().third() is Made]
    given = classmethod(len).__get__([n]), staticmethod(len).__get__(n)
    return x, found, given[0].__self__ is list, given[1]([n])


@case(with_x(1, 2))
def a_bound_descriptor_after_a_break(x, n):
    class Made:
        @Binding
        def f(cls):
            return cls

    x.untyped_storage()
    return x, Made().f() is Made, Made.f() is Made


@case(with_x(1, 2))
def annotations_of_what_is_wrapped(x, n):
    def function(value: int) -> str:
        return value

    wrapped = staticmethod(function), classmethod(function)
    names = ("__module__", "__name__", "__doc__", "__annotations__")
    return x, [getattr(made, name) is getattr(function, name) for made in wrapped for name in names]


@case(with_x(1, "a"))
def unions_of_classes_made_here(x, n):
    class Made:
        pass

    union = Made | type(n)
    x.untyped_storage()
    parts = union.__args__
    return (
        x,
        parts[0] is Made,
        isinstance(Made(), union),
        union == Made | type(n),
        union == int | str,
    )


@case(lambda: [(t(2), int | str), (t(2), str | int), (t(2), int | None), (t(2), list[int])])
def forms_of_types_as_arguments(x, form):
    return x, form == int | str, form == list[int], form | bytes == int | str | bytes


@case(lambda: [(t(2), list), (t(2), dict), (t(2), int)])
def unions_are_of_the_class_given(x, cls):
    return x, (cls | str).__args__[0] is cls


@case(with_x(1, 2))
def the_class_around_the_body_of_a_class(x, n):
    class Outer:
        def make(self):
            class Inner:
                outer = __class__  # noqa: F821  # that of the method

                def own(self):
                    return __class__

            return Inner

    made = Outer().make()
    return x, made.outer is Outer, made().own() is made


@typing.runtime_checkable
class HasSize(typing.Protocol):
    size: int

    def grow(self): ...


class Growing:
    def grow(self):
        return 1


@scenario(lambda state: [(t(2), state[0]), (t(2), state[1]), (t(2), state[0])])
def protocols_asked_of_outer_objects(x=None):
    def program(x, thing):
        return x + 1 if isinstance(thing, HasSize) else x - 1

    first, second = Growing(), Growing()
    first.size = 3
    return program, (first, second)


@case(with_x(0, 1, 0))
def protocols_asked_of_objects_made_here(x, n):
    class Made(Growing):
        pass

    class Other:
        size = 3

    made = Made()
    if n:
        made.size = n
    HasSize.register(Other)
    return x, isinstance(made, HasSize), isinstance(Other(), HasSize), isinstance(n, HasSize)


@case(with_x(1, 2))
def new_that_is_a_class_method(x, n):
    class Made:
        @classmethod
        def __new__(*args):
            return len(args), args[0] is args[1], args[2:]

    return x, Made(n)


@case(with_x(1, 2))
def cause_that_is_made_to_be_no_exception(x, n):
    class Odd(BaseException):
        def __new__(cls):
            return n

    try:
        raise IndexError(n) from Odd
    except (TypeError, IndexError) as error:
        return x, type(error).__name__, type(error.__cause__).__name__


@case(with_x(1, 2))
def signature_of_an_object_that_is_called(x, n):
    class Called:
        def __init__(self, first, *rest):
            self.first = first

        def __call__(self, given, /, *, other=n):
            return given

    return x, str(inspect.signature(Called)), str(inspect.signature(Called(1)))


@case(with_x(0, 1))
def objects_that_hide_how_they_are_copied(x, n):
    class Hiding:
        def __getattribute__(self, name):
            if n and name.startswith("__reduce"):
                raise AttributeError(name)
            return object.__getattribute__(self, name)

    made = Hiding()
    made.held = n
    try:
        return x, copy.copy(made).held
    except copy.Error as error:
        return x, str(error)[:20]
