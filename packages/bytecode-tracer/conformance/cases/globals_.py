"""Globals: read, rebound, mutated between calls and by the program; builtins; modules."""

from __future__ import annotations

import builtins
import gc
import keyword
import math
import sys
import types
import warnings

import torch

from conformance.declare import case, t, with_x

NUMBER = 2
FLAG = True
TEXT = "a"
ITEMS = [1, 2]
TABLE = {"a": 1}
TENSOR = t(2)
NOTHING = None
COUNT = 0
LATER: object
NAMESPACE = types.SimpleNamespace(level=1, tensor=t(2))


class Settings:
    factor = 2
    mode = "add"
    history = []


def helper(x):
    return x + 1


def _rebind(name, *values):
    def sets():
        for value in values:
            globals()[name] = value
            yield (t(2),)

    return sets


@case(_rebind("NUMBER", 2, 3, 2.0, True, 2))
def number_rebound(x):
    return x * NUMBER


@case(_rebind("FLAG", True, False, None, 1, True))
def flag_rebound(x):
    return x + 1 if FLAG else x - 1


@case(_rebind("TEXT", "a", "b", "a", None))
def text_rebound(x):
    return x * 2 if TEXT == "a" else x, TEXT


@case(_rebind("NOTHING", None, 3, None, t(2)))
def none_rebound(x):
    return x if NOTHING is None else x + NOTHING


@case(_rebind("TENSOR", t(2), t(1), t(2).double(), t(2)))
def tensor_rebound(x):
    return x + TENSOR, TENSOR


@case(_rebind("helper", lambda x: x + 1, lambda x: x * 5, torch.sin))
def function_rebound(x):
    return helper(x)


def _items():
    yield (t(2),)
    ITEMS.append(3)
    yield (t(2),)
    ITEMS[0] = 9
    yield (t(2),)
    globals()["ITEMS"] = [7]
    yield (t(2),)


@case(_items)
def list_mutated(x):
    for item in ITEMS:
        x = x + item
    return x


def _table():
    yield (t(2),)
    TABLE["a"] = 5
    yield (t(2),)
    TABLE["b"] = 1
    yield (t(2),)
    TABLE.clear()
    yield (t(2),)


@case(_table)
def dict_mutated(x):
    return [x * value for value in TABLE.values()], TABLE.get("a", 0)


def _settings():
    yield (t(2),)
    Settings.factor = 5
    yield (t(2),)
    Settings.mode = "mul"
    yield (t(2),)
    Settings.factor = t(2)
    yield (t(2),)


@case(_settings)
def class_attributes_changed(x):
    return x + Settings.factor if Settings.mode == "add" else x * Settings.factor


def _namespace():
    yield (t(2),)
    NAMESPACE.level = 3
    yield (t(2),)
    NAMESPACE.tensor = t(1)
    yield (t(2),)
    NAMESPACE.tensor.add_(5)
    yield (t(2),)


@case(_namespace)
def object_attributes_changed(x):
    return x * NAMESPACE.level + NAMESPACE.tensor


def _in_place():
    yield (t(2),)
    TENSOR.add_(1)
    yield (t(2),)
    TENSOR.data = t(3)
    yield (t(3),)


@case(_in_place)
def tensor_changed_in_place(x):
    return x + TENSOR


def _thrice():
    return [(t(2),), (t(2),), (t(3),)]


@case(_thrice)
def counter_written(x):
    global COUNT
    COUNT += 1
    return x * COUNT


@case(_thrice)
def global_made(x):
    global LATER, MADE  # noqa: PLW0604
    try:
        seen = MADE
    except NameError:
        seen = "unset"
    MADE = x
    LATER = seen
    return x


@case(_thrice)
def global_deleted(x):
    global SHORT
    SHORT = 5
    y = x * SHORT
    del SHORT
    return y, "SHORT" in globals()


@case(_thrice)
def list_appended(x):
    ITEMS.append(len(ITEMS))
    return x + sum(ITEMS)


@case(_thrice)
def tensor_written_in_place(x):
    TENSOR.add_(1)
    return x.sum() + TENSOR


@case(_thrice)
def class_attribute_written(x):
    Settings.factor += 1
    Settings.history.append(Settings.factor)
    return x * Settings.factor


@case(_thrice)
def written_in_nested_function(x):
    def bump():
        global COUNT
        COUNT += 10
        return COUNT

    return x + bump() + bump(), COUNT


@case(_thrice)
def tensor_stored_in_global(x):
    previous = TABLE.get("last")
    TABLE["last"] = x * 2
    return previous


@case(_thrice)
def written_then_raises(x):
    global COUNT
    COUNT += 1
    if COUNT == 2:
        raise ValueError(COUNT)
    COUNT += 10
    return x * COUNT


@case(_thrice)
def through_globals_function(x):
    globals()["COUNT"] = COUNT + 5
    return x * COUNT, globals()["NUMBER"], "helper" in globals()


def _shadowed_builtin():
    yield (t(2), [3, 4])
    globals()["len"] = lambda items: 100
    yield (t(2), [3, 4])
    del globals()["len"]
    yield (t(2), [3, 4])


@case(_shadowed_builtin)
def builtin_shadowed(x, items):
    return x * len(items)


def _patched_builtin():
    original = builtins.abs
    yield (t(2), -3)
    try:
        builtins.abs = lambda n: 77
        yield (t(2), -3)
    finally:
        builtins.abs = original
    yield (t(2), -3)


@case(_patched_builtin)
def builtin_replaced(x, n):
    return x * abs(n)


def _patched_module():
    original = math.sqrt
    yield (t(2), 4)
    try:
        math.sqrt = lambda n: -1
        yield (t(2), 4)
    finally:
        math.sqrt = original
    yield (t(2), 4)


@case(_patched_module)
def module_attribute_replaced(x, n):
    return x * math.sqrt(n)


def _patched_torch():
    original = torch.sin
    yield (t(2),)
    try:
        torch.sin = torch.cos
        yield (t(2),)
    finally:
        torch.sin = original
    yield (t(2),)


@case(_patched_torch)
def torch_function_replaced(x):
    return torch.sin(x)


@case(with_x(1, 2))
def import_inside(x, n):
    import math as own
    from collections import OrderedDict

    return x * own.floor(n + 0.5), OrderedDict(a=n)


@case(with_x("math", "operator", "no_such_module"))
def import_by_name(x, name):
    import importlib

    try:
        return importlib.import_module(name).__name__, x
    except ModuleNotFoundError as error:
        return str(error)


@case(with_x(1, 2))
def modules_as_values(x, n):
    modules = {"torch": torch, "math": math}
    return modules["torch"].sin(x), modules["math"].pi * n, sys.modules["math"] is math


@case(_thrice)
def dunder_names(x):
    return __name__.rpartition(".")[2], x


@case(_thrice)
def locals_function(x):
    n = 3
    return sorted(locals()), locals()["n"] * x


MODULE = types.ModuleType("settings")
MODULE.level = 1


@case(with_x(2, 3))
def module_variable_set_and_read(x, n):
    before = MODULE.level
    MODULE.level = n
    middle = MODULE.level
    MODULE.extra = x
    del MODULE.extra
    gone = hasattr(MODULE, "extra")
    MODULE.level = before
    return before, middle, MODULE.level, gone, x * middle


@case(with_x(2, 3))
def module_variable_set_for_good(x, n):
    MODULE.level = MODULE.level + n
    return x * MODULE.level


def read_count():
    return COUNT


@case(with_x(2, 3))
def global_set_through_its_module(x, n):
    global COUNT
    COUNT = COUNT + n
    table = globals_of(read_count)
    table["COUNT"] += 1
    return x * read_count(), COUNT


def globals_of(function):
    return function.__globals__


@case(with_x(2, 3))
def imported_in_the_function(x, n):
    import sys

    limit = sys.dont_write_bytecode
    sys.plait_case = n
    found = sys.plait_case
    del sys.plait_case
    return x * found, limit, hasattr(sys, "plait_case")


def _imported_changes():
    for value in (1, 2, 1):
        sys.plait_level = value
        yield (t(2),)
    del sys.plait_level


@case(_imported_changes)
def imported_and_changed_between_calls(x):
    import sys as system

    return x * system.plait_level


@case(with_x(2, 3))
def globals_read_and_set(x, n):
    table = globals()
    table["NUMBER"] = n
    before = NUMBER
    table.setdefault("FRESH", 5)
    fresh = FRESH  # noqa: F821  # set above
    del globals()["FRESH"]
    return before, fresh, "FRESH" in globals(), globals() is table, x * table["NUMBER"]


@case(with_x(2, 3))
def global_deleted_and_asked_for(x, n):
    global ONLY
    ONLY = n
    found = ONLY
    del ONLY
    try:
        return ONLY
    except NameError as error:
        return str(error), found, x


@case(with_x(2, 3))
def settings_of_the_interpreter(x, n):
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = keyword.iskeyword("for"), keyword.iskeyword("four")
    limits = sys.getrecursionlimit() > 10, sys.getswitchinterval() > 0, gc.isenabled()
    return found, limits, sys.intern("a" * n), len(warnings.filters) > 0, x * n


def _changed_limit():
    before = sys.getrecursionlimit()
    for more in (0, 7, 0):
        sys.setrecursionlimit(before + more)
        yield (t(2),)
    sys.setrecursionlimit(before)


@case(_changed_limit)
def setting_changed_between_calls(x):
    return x, sys.getrecursionlimit()


class Watching(type):
    def __getattribute__(cls, name):
        if name == "secret":
            return "watched"
        return super().__getattribute__(name)


class Watched(metaclass=Watching):
    secret = 1
    open = 2


@case(with_x(2, 3))
def metaclass_that_intercepts(x, n):
    return Watched.secret, Watched.open * x, getattr(Watched, "missing", n), Watched.__name__
