"""What the interpreter asks of objects, in corners: `super`, comparison, numbers, builtins."""

from __future__ import annotations

import abc
import builtins
import copy
import gc
import inspect
import operator
import sys
import time
import types
import typing

import torch

from conformance.declare import case, scenario, t, with_x

# super


class Base:
    msg = "base"

    def double(self, x):
        return x * 2


@case(with_x(0, 1))
def super_attributes_that_it_has_itself(x, n):
    class Child(Base):
        def find(self):
            made = super()
            return made.__thisclass__ is Child, made.__self__ is self, made.__class__.__name__

    return x * n, Child().find()


@case(with_x("msg", "missing", "__self_class__"))
def super_attribute_that_may_be_missing(x, name):
    class Child(Base):
        def find(self):
            try:
                return getattr(super(), name)
            except AttributeError as error:
                return str(error)

        def direct(self):
            return super().missing

    try:
        Child().direct()
    except AttributeError as error:
        return x, str(Child().find()).rpartition(".")[2], str(error)


@case(with_x(0, 1, 0))
def super_of_the_programs_own(x, n):
    class Plain:
        msg = "own"

    class Child(Base):
        def find(self):
            return super().msg

    space = globals()
    if n:
        space["super"] = Plain
    try:
        return x, Child().find()
    finally:
        space.pop("super", None)


@case(with_x(0, 1, 2))
def super_that_finds_no_class(x, n):
    def alone():
        super()

    class Odd:
        def deleted(self):
            del self
            super()

        def emptied(self):
            nonlocal __class__
            del __class__
            super()

    call = (alone, lambda: Odd().deleted(), lambda: Odd().emptied())[n]
    try:
        call()
    except RuntimeError as error:
        return x, str(error)


@case(with_x(1, 3))
def super_attribute_after_a_break(x, n):
    class Child(Base):
        def run(self, x):
            torch._dynamo_is_not_here = None  # a write to a module that is not traced through
            return super().double(x) + len(super().msg)

    try:
        return Child().run(x) * n
    finally:
        del torch._dynamo_is_not_here


# Comparison


class Abstract(metaclass=abc.ABCMeta):
    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        self.log.append("abstract")
        return NotImplemented

    __hash__ = None


class Virtual:
    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        self.log.append("virtual")
        return NotImplemented

    def __radd__(self, other):
        self.log.append("radd")
        return 5

    __hash__ = None


Abstract.register(Virtual)


@case(with_x(0, 1))
def virtual_subclasses_are_not_asked_first(x, n):
    log = []
    pair = [Abstract(log), Virtual(log)]
    return x, pair[n] == pair[1 - n], log


def cell_of(*value):
    def inner():
        return held

    if value:
        held = value[0]
    return inner.__closure__[0]


@case(with_x(2, 3, "text"))
def cells_compare_as_what_they_hold(x, n):
    one, other, empty = cell_of(n), cell_of(3), cell_of()
    found = [one == other, empty == cell_of(), empty != one, empty < one, one > empty]
    if not isinstance(n, str):
        found.append(one < other)
    return x, found


@case(with_x(0, 1))
def hashes_are_cut_as_the_interpreter_does(x, n):
    class Proxy:
        def __hash__(self):
            return (hash("halibut"), 2**70 + 5)[n]

        def __eq__(self, other):
            return other == "halibut"

    return x, len({"halibut", Proxy()}), hash(Proxy()) == Proxy().__hash__()


class Anything:
    def __init__(self, equal):
        self.equal = equal

    def __eq__(self, other):
        return other == self.equal

    def __hash__(self):
        return hash(self.equal)


@case(with_x(2, 7, "no"))
def searching_constants_for_an_object(x, n):
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    wanted = Anything(n)
    return (
        x,
        wanted in range(5),
        wanted in (1, 2),
        wanted in frozenset((2, 3)),
        Always(11) in range(3),
    )


# Numbers


@case(with_x(7, -3))
def int_subclass_that_defines_index(x, n):
    class Mine(int):
        def __index__(self):
            return int(self) + 1

    made = Mine(n)
    return x, operator.index(made), made.__index__(), list(range(10))[made], hex(made)


@case(with_x(1.5, 2.0, -0.0))
def parts_of_subclasses_of_numbers(x, n):
    class Complex(complex):
        pass

    class Real(float):
        pass

    class Whole(int):
        pass

    made = Complex(n, 2.5)
    return x, made.real, made.imag, Real(n).real, Whole(n).numerator, Whole(n).denominator


@case(with_x(0.1, 0.3, 1))
def sums_of_floats(x, n):
    values = [n] * 10
    try:
        text = sum(["a"], "")
    except TypeError as error:
        text = str(error)
    return x + sum(values), sum(values), sum([1.0, 10e100, 1.0, -10e100]), sum([1, n, x]), text


@case(with_x(0, 1, 2, 3))
def extremes_called_wrongly(x, n):
    calls = (
        lambda: max(),
        lambda: min(1, 2, default=None),
        lambda: max([], default=x),
        lambda: min([1], other=3),
    )
    try:
        return calls[n]()
    except TypeError as error:
        return x, str(error)


@case(with_x(0, 1))
def truth_of_what_an_object_says(x, n):
    class Asked:
        def __init__(self, number):
            self.number = number

        def __bool__(self):
            return self.number > 0

    return x + 1 if Asked(n) else x - 1


# Builtins


@case(with_x(0, 1, 0))
def builtins_that_the_program_replaces(x, n):
    def count():
        return len([1, 2, 3])

    before = count()
    kept = builtins.len
    if n:
        builtins.len = lambda values: 7
    try:
        return x + count(), before
    finally:
        builtins.len = kept


@case(with_x(0, 1))
def names_of_builtins_are_not_attributes_of_the_module(x, n):
    class Made:
        del __annotations__  # noqa: F821  # the class statement makes it
        try:
            y: int = n
            found = "annotated"
        except NameError as error:
            found = str(error)
        z: str = ""

    return x, Made.found


@case(with_x(0, 1))
def builtins_of_functions(x, n):
    def made():
        return n

    outer = cell_of.__builtins__
    return x, made.__builtins__ is outer, "len" in outer


# Classes that are told apart


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


# Descriptors that hold descriptors


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


# Types as values


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


# Tuples of classes that C defines


@case(lambda: [(t(2), time.gmtime(0)), (t(2), time.gmtime(86400 * 400))])
def fields_beside_the_elements_of_a_tuple(x, when):
    copied = copy.copy(when)
    return x + when.tm_year, when.tm_zone, when.tm_gmtoff, len(when), copied.tm_zone, copied == when


@case(with_x(1, 2))
def tuples_with_fields_made_here(x, n):
    made = torch.return_types.max((x, n))
    when = time.struct_time([n] * 11)
    return made.values, made.indices, when.tm_zone, when[0]


@case(lambda: [(t(3, 2),), (t(2, 3),)])
def parts_of_tuples_with_fields_are_plain(x):
    found = x.max(0)
    parts = found[:1], found[::-1], found[:], found + (1,)
    return x, parts, [type(each) for each in parts]


# The interpreter itself


@case(with_x(1, 2))
def numbers_too_long_to_write(x, n):
    large = 7 ** (3000 * n)
    x.untyped_storage()
    try:
        text = str(large)
    except ValueError as error:
        text = str(error)[:20]
    return x, large % 1000, len(text)


@case(lambda: [(t(2), 7**3000), (t(2), 7**3000), (t(2), 7**6000)])
def long_numbers_as_arguments(x, number):
    return x * (number % 10), {number: 1}[number]


@case(with_x(1, 2))
def recursion_at_its_limit(x, n):
    def deeper(count):
        return deeper(count + 1)

    limit = sys.getrecursionlimit()
    depth = 1
    while True:
        try:
            sys.setrecursionlimit(depth)
        except RecursionError:
            depth += 1
        else:
            break
    sys.setrecursionlimit(depth + 10 * n)
    try:
        deeper(0)
    except RecursionError:
        found = "too deep"
    finally:
        sys.setrecursionlimit(limit)
    return x, found


@case(with_x(0, 1, 0))
def breaks_while_builtins_are_replaced(x, n):
    kept = builtins.len
    if n:
        builtins.len = lambda values: 7
    try:
        x.untyped_storage()
        return x + len([1, 2])
    finally:
        builtins.len = kept


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


# Protocols of `typing`


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


# Corners of classes and exceptions


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


@case(lambda: [(t(2), [3, 1, 2] * 40), (t(2), [5, 9, 2] * 40), (t(2), [6, 9, 1] * 40)])
def many_numbers_compared(x, numbers):
    return x * sorted(numbers)[0], sorted(numbers, reverse=True)[0]


@case(with_x(1, 2))
def thresholds_of_the_collector(x, n):
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10 + n)
    try:
        return x, gc.get_threshold()
    finally:
        gc.set_threshold(*before)


# Lists that change while they are sorted


@case(with_x(0, 1, 2, 3))
def lists_changed_while_they_are_sorted(x, n):
    values = [3, 1, 2]
    acts = (
        lambda: values.append(4),
        lambda: values.extend([]),
        lambda: len(values),
        lambda: values.insert(0, 7),
    )
    seen = []

    def key(value):
        acts[n]()
        seen.append(list(values))
        return value

    try:
        values.sort(key=key)
    except ValueError as error:
        return x, str(error), values, seen
    return x, values, seen


# Where a frame stands that an exception has left


class Passing:
    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False


def raised_again():
    try:
        raise KeyError("k")
    except Exception:
        raise


def raised_within_with():
    with Passing():
        x = 1
        raise KeyError("k")
    return x


def raised_before_finally():
    x = 0
    try:
        raise KeyError("k")
    finally:
        x += 1
        x += 2


def raised_past_a_handler():
    try:
        raised_again()
    except ValueError:
        pass
    return 3


@case(with_x(0, 1, 2, 3))
def lines_of_frames_that_an_exception_has_left(x, n):
    functions = (raised_again, raised_within_with, raised_before_finally, raised_past_a_handler)
    try:
        functions[n]()
    except KeyError as error:
        entry = error.__traceback__.tb_next
    found = []
    while entry is not None:
        frame = entry.tb_frame
        start = frame.f_code.co_firstlineno
        found.append((entry.tb_lineno - start, frame.f_lineno - start))
        entry = entry.tb_next
    return x, found


@case(with_x(0, 1, 2))
def calls_that_fail_in_the_interpreters_words(x, n):
    calls = (lambda: iter(n, 2), lambda: operator(), lambda: x.shape())
    try:
        return x, calls[n]()
    except TypeError as error:
        return x, str(error)


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
