"""Read-only views of mappings: they show what the mapping holds now."""

from __future__ import annotations

import collections
import types
from collections.abc import Mapping

from conformance.declare import case, only, scenario, t, with_x

SHARED = {"a": 1, "b": 2}
VIEW = types.MappingProxyType(SHARED)


class Settings:
    """A class whose namespace is read."""

    factor = 2

    def method(self):
        return self.factor


class Lenient(dict):
    """A mapping with an answer of its own."""

    def __missing__(self, key):
        return f"no {key}"


@case(with_x(1, 2, 3))
def shows_later_changes(x, n):
    held = {"n": n}
    view = types.MappingProxyType(held)
    before = dict(view)
    held["more"] = n + 1
    return x * view["more"], before, view, len(view), held


@case(with_x("a", "b", "missing"))
def of_a_global(x, key):
    SHARED["b"] += 1
    return (
        x,
        VIEW.get(key, "nothing"),
        key in VIEW,
        list(VIEW),
        repr(VIEW),
        str(VIEW),
        VIEW == SHARED,
    )


@case(lambda: [(t(2), types.MappingProxyType(held)) for held in ({"k": 2}, {"k": 3}, {}, {"j": 1})])
def of_the_caller(x, view):
    try:
        factor = view["k"]
    except KeyError as error:
        return repr(error), view
    return x * factor, view, isinstance(view, Mapping), type(view).__name__


@scenario(lambda held: [(t(2), held.update(k=n)) for n in (1, 2, 3)])
def whose_dict_changes_between_calls():
    held = {"k": 0}
    view = types.MappingProxyType(held)

    def program(x, _):
        return x * view["k"], list(view.items()), view.keys() & {"k"}

    return program, held


@case(with_x(0, 1))
def methods(x, n):
    view = types.MappingProxyType({"a": n, "b": x})
    keys, pairs = list(view.keys()), list(reversed(view.items()))
    return keys, pairs, list(view.values()), view.copy(), list(reversed(view)), {**view}, bool(view)


@case(only({"a": 1}, {}, {"q": 2}))
def merged(other):
    view = types.MappingProxyType({"a": 0})
    return view | other, other | view, view | view, view == other, view != other


REFUSED = (
    lambda view: view.__setitem__("a", 1),
    lambda view: view | 5,
    lambda view: view < {},
    lambda view: types.MappingProxyType([1]),
    lambda view: types.MappingProxyType(3),
    lambda view: view["nothing"],
)


@case(only(0, 1, 2, 3, 4, 5))
def refuses(which):
    view = types.MappingProxyType({"a": 1})
    try:
        return REFUSED[which](view)
    except (TypeError, AttributeError, KeyError) as error:
        return type(error), str(error)


@case(only("a", 0))
def cannot_be_written(key):
    view = types.MappingProxyType({key: 1})
    texts = []
    try:
        view[key] = 2
    except TypeError as error:
        texts.append(str(error))
    try:
        del view[key]
    except TypeError as error:
        texts.append(str(error))
    try:
        view |= {}
    except TypeError as error:
        texts.append(str(error))
    return texts, view


@case(only({"a": 1}, {"b": 1}))
def of_other_mappings(held):
    lenient = types.MappingProxyType(Lenient(held))
    chained = types.MappingProxyType(collections.ChainMap({"c": 3}, held))
    ordered = types.MappingProxyType(collections.OrderedDict(held))
    return lenient["a"], chained["c"], list(chained), list(ordered), "a" in chained, len(lenient)


@case(with_x(1, 2))
def in_a_match(x, n):
    match types.MappingProxyType({"size": n}):
        case {"size": 1}:
            return x
        case {"size": size, **rest}:
            return x * size, rest


def _factors():
    for factor in (2, 3, 4):
        Settings.factor = factor
        yield (t(2),)


@case(_factors)
def namespace_of_a_class(x):
    names = Settings.__dict__
    return x * names["factor"], "method" in names, names.get("other", 5), vars(Settings)["factor"]


@case(with_x(1, 2))
def namespace_of_a_class_made_here(x, n):
    class Made:
        size = n

        def method(self):
            return self.size

    names = Made.__dict__
    before = "later" in names
    Made.later = x
    Made.size = n + 1
    del Made.method
    return before, names["later"] * names["size"], "method" in names, names.get("size")
