"""Methods that C defines: bound, compared, asked what they are, called with other arguments."""

from __future__ import annotations

import collections
import operator
import types
import weakref
from typing import NamedTuple

from conformance.declare import case, only, with_x

COMPARED = (operator.eq, operator.ne, operator.lt, operator.ge)


def _error(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return type(error).__name__, str(error)


@case(with_x([1, 2], [3], []))
def compared(x, given):
    made = []
    pairs = [
        (made.append, made.append),
        (made.append, [].append),
        (made.append, made.pop),
        (made.__add__, made.__add__),
        (made.__add__, made.__mul__),
        (made.__len__, made.append),
        (given.append, given.append),
        (given.append, made.append),
        (x.add, x.add),
        (x.add, x.sub),
        (x.__rsub__, x.__rsub__),
        ("a".join, "a".join),
        ({}.get, made.append),
    ]
    return [_error(function, *pair) for function in COMPARED for pair in pairs], x + 1


@case(only([1, 2], (1, 2), {1: 2}, {1, 2}))
def described(value):
    names = ("__name__", "__doc__", "__hash__", "__class__", "mro", "__text_signature__")
    found = [getattr(value, name, "missing") for name in names]
    found = [one if one is None or isinstance(one, str | type) else "there" for one in found]
    method = value.__len__
    more = [type(method), method.__name__, method.__objclass__, method.__doc__]
    return found, more, method.__self__ is value


@case(with_x(1, 2))
def views_and_iterators_described(x, n):
    table = {"a": n}
    values = (table.keys(), table.items(), iter([n]), enumerate([n]))
    names = ("__name__", "__class__", "__text_signature__")
    found = [(type(v), getattr(v, n, "missing")) for v in values for n in names]
    return found, x * n


@case(only("key", "default", "self", "other", "frame", "owner"))
def arguments_by_name(name):
    table, ordered, numbers = {"a": 1}, collections.OrderedDict(a=1), [3, 1, 2]
    found = [
        _error(table.get, **{name: "a"}),
        _error(table.pop, **{name: "a"}),
        _error(table.setdefault, **{name: "a"}),
        _error(table.update, **{name: "a"}),
        _error(numbers.append, **{name: 1}),
        _error(numbers.__getitem__, **{name: 1}),
        _error(ordered.update, **{name: 5}),
        _error(len, **{name: 1}),
        _error(callable, **{name: 1}),
        _error(any, **{name: [1]}),
    ]
    return found, list(table.items()), list(ordered.items()), numbers


@case(with_x(2, "text", len))
def bound_to_anything(x, function):
    made = classmethod(function).__get__(None, 5)
    text = _error(types.MethodType, function, 5), _error(types.MethodType, len, None)
    is_callable = isinstance(text[0], tuple)
    found = None if callable(function) else _error(made)
    return made.__self__, is_callable, text[1], found, x + 1


class Sized:
    def __init__(self, count):
        self.count = count
        self.asked = 0

    def __len__(self):
        self.asked += 1
        return self.count

    def __getitem__(self, index):
        return index


@case(with_x(1, 4))
def length_of_reversed(x, count):
    sized = Sized(count)
    turned = reversed(sized)
    found = [operator.length_hint(turned), next(turned), operator.length_hint(turned)]
    sized.count = 0
    found += [operator.length_hint(turned), sized.asked, list(turned), sized.asked]
    return found, operator.length_hint(turned), sized.asked, x


class Hashed:
    asked = 0

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        Hashed.asked += 1
        return self.value


@case(with_x(-1, 0, 2**62, 7))
def hash_of_tuple(x, value):
    Hashed.asked = 0
    one = Hashed(value)
    return hash((one, 1)), hash(((one, one), "a"[:0])), Hashed.asked, x


class Slotted:
    __slots__ = ("__weakref__", "value")


@case(with_x(1, 2))
def slot_of_references(x, n):
    one = Slotted()
    one.value = n
    before = one.__weakref__
    reference = weakref.ref(one)
    return before, one.__weakref__ is reference, x * one.value


class NewArguments:
    def __init__(self, args):
        self.args = args

    def __getnewargs__(self):
        return self.args


class NewNames(NewArguments):
    def __getnewargs_ex__(self):
        return self.args


@case(with_x((1,), "text", ((1,), {}), ((1,), {"a": 2}), ((), "text"), ("text", {}), 5))
def arguments_of_new(x, args):
    made = [NewArguments(args), NewNames(args)]
    return [_error(each.__reduce_ex__, 2)[:2] for each in made], x


@case(with_x(1, 2))
def attributes_of_ordered(x, n):
    made = collections.OrderedDict(a=n)
    before = dict(made.__dict__)
    made.x = n
    return before, made.__dict__["x"], isinstance(made.__dict__, dict), made, x


class Described:
    """Has methods."""

    def method(self, other):
        """Tells what it is bound to."""
        return self, other

    method.tag = 3


@case(with_x(1, 2))
def of_bound_methods(x, n):
    one, other = Described(), Described()
    bound = one.method
    other.again = bound.__get__(other, Described)
    parts = other.again(n)
    found = [parts[0] is one, parts[0] is other, bound.__class__, bound.__doc__, bound.tag]
    found += [bound.__name__, bound.__call__(n)[1], bound.__eq__(one.method), bound == other.again]
    return found, x * n


@case(with_x(1, 2))
def names_in_a_function_s_dict(x, n):
    def inner():
        """Is documented."""
        return n

    inner.__dict__.update({"__name__": "other", "__doc__": "another", "k": n})
    return inner.__name__, inner.__doc__, inner.k, dict(inner.__dict__), inner, x


class Fields(NamedTuple):
    first: int

    def method(self):
        return self.first


class Open(Fields):
    """Has a dict."""


@case(with_x("first", "method", "append", "get", "add", "other", "values"))
def attributes_set(x, name):
    found = []
    for value in (Fields(1), [], {}, {1}, (1,), x.max(0), iter([1]), {}.keys()):
        found.append(_error(setattr, value, name, 5))
    made = Open(2)
    made.other = 3
    return found, made.other, x
