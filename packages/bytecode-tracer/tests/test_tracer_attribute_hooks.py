"""Objects whose class notes what is asked of them are asked what plain Python asks, and no more."""

import collections
import copy
import functools
import sys
import types

import pytest
import torch
from torch import nn
from tracer_oracle import assert_same, compiled, outcome

from plait_bytecode_tracer import compile

ASKED = []


class Noting:
    def __init__(self, value):
        self.value = value

    def __getattribute__(self, name):
        ASKED.append(name)
        return object.__getattribute__(self, name)

    def __call__(self, x):
        return x * self.value


class NotingModule(types.ModuleType):
    def __getattribute__(self, name):
        ASKED.append(name)
        return types.ModuleType.__getattribute__(self, name)


class NotingLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.inner = 2, nn.Linear(2, 2)

    def __getattribute__(self, name):
        if name == "__class__":
            ASKED.append(name)
        return super().__getattribute__(name)

    def forward(self, x):
        return self.inner(x) * self.scale


MODULE = NotingModule("noting")
HELD = Noting(2)


def reads(x, one, held):
    held.append(one)
    y = one(x) + held[0].value + HELD.value + MODULE.value
    return y, one is held[1], one == HELD


def changes(x, one, held):
    made = NotingModule("made")
    made.value = 2
    y = x * made.value + MODULE.value + one.value
    MODULE.value = 4
    sys.getswitchinterval()
    y = y + held[0].value
    one.value = 5
    del made.value
    return y, one.value


def compares(x, one, held):
    found = one == HELD, one in held, bool(one), {one: 1}[one], [one, HELD] == held, callable(one)
    sys.getswitchinterval()
    return x + 1, found, type(one), hash(one) == hash(HELD)


@pytest.mark.parametrize("function", [reads, changes, compares])
@pytest.mark.sampled(2)
def test_objects_are_asked_what_python_asks(function):
    compiled = compile(function, lambda graph_module, example_inputs: graph_module.forward)
    found = {}
    for called in (function, compiled, compiled):
        MODULE.value = 3
        args = torch.ones(2), Noting(1), [Noting(2)]
        ASKED.clear()
        called(*args)
        found.setdefault(called, []).append(sorted(ASKED))
    assert found[compiled] == found[function] * 2


def test_layers_are_not_asked_for_their_class():
    layer = NotingLayer()
    compiled = compile(lambda x, layer: layer(x), lambda gm, inputs: gm.forward)
    for _ in range(2):
        ASKED.clear()
        found = compiled(torch.ones(2), layer)
        asked = [*ASKED]
        assert torch.equal(found, layer(torch.ones(2)))
        assert not asked


class AttributeDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Configured(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = AttributeDict(scale=1, once=2)

    def forward(self, x):
        self.config.scale = self.config["scale"] + 1
        self.config.last = x * self.config.scale
        if "once" in self.config:
            del self.config.once
        return x * self.config.scale


class Renaming:
    def put(self, mark, name, value):
        self.__dict__[mark + name] = value

    __setattr__ = functools.partialmethod(put, "_")


def writes_entries(x, held):
    held.scale = held.scale + 1
    setattr(held, "last", x * 2)
    made = AttributeDict(other=1)
    made.more = x
    del made.other
    return x * held["scale"], dict(made), vars(made)


def deletes_entries(x, held):
    try:
        del held.scale
    except KeyError as error:
        return x, str(error)
    return x, dict(held)


def renames(x, held):
    held.scale = x
    return held._scale


@pytest.mark.parametrize("function", [writes_entries, deletes_entries])
def test_attributes_may_be_the_entries_of_a_dict(function):
    made = compiled(function)
    expected_held, actual_held = AttributeDict(scale=1), AttributeDict(scale=1)
    for _ in range(3):
        expected, actual = function(torch.ones(2), expected_held), made(torch.ones(2), actual_held)
        assert_same(actual, expected)
        assert_same(dict(actual_held), dict(expected_held))
        assert not vars(actual_held)


def test_modules_may_hold_attribute_dicts():
    expected_layer, actual_layer = Configured(), Configured()
    made = compile(actual_layer, lambda gm, inputs: gm.forward)
    for _ in range(3):
        assert_same(made(torch.ones(2)), expected_layer(torch.ones(2)))
        assert_same(dict(actual_layer.config), dict(expected_layer.config))


def test_a_hook_may_be_any_descriptor():
    made = compiled(renames)
    for _ in range(2):
        held = Renaming()
        assert_same(made(torch.ones(2), held), torch.ones(2))
        assert list(vars(held)) == ["_scale"]


class OwnTable(dict):
    """A dict that holds its own attributes; a deep copy of it does not."""

    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__ = self


def writes_attributes_and_entries(x, held):
    held.scale = 7
    y = x * held["scale"]
    held["scale"] = 8
    return y + held.scale, held.__dict__ is held


def deletes_an_attribute(x, held):
    held.more = x
    del held.scale
    return x, "scale" in held, hasattr(held, "scale"), [*held], [*vars(held)]


def changes_by_methods(x, held):
    held.update(scale=3, more=x)
    held.setdefault("last", 4)
    popped = held.pop("more")
    held.__dict__["inner"] = 5
    found = [getattr(held, name, None) for name in ("scale", "more", "last", "inner")]
    return popped, found, len(held), held.get("inner")


def clears(x, held):
    held.clear()
    return x, hasattr(held, "scale"), len(held)


def copies(x, held):
    held.scale = 5
    other = copy.copy(held)
    other.scale = 6
    return x * held.scale, dict(other), vars(other)


@pytest.mark.parametrize(
    "function",
    [writes_attributes_and_entries, deletes_an_attribute, changes_by_methods, clears, copies],
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_dict_may_hold_its_own_attributes(function, first):
    made = compiled(function)
    for call in range(4):
        apart = call % 2 == first

        def fresh(apart=apart):
            return copy.deepcopy(OwnTable(scale=1)) if apart else OwnTable(scale=1)

        expected_held, actual_held = fresh(), fresh()
        for _ in range(2):
            expected = outcome(function, (torch.ones(2), expected_held))
            actual = outcome(made, (torch.ones(2), actual_held))
            assert_same(actual["result"], expected["result"])
            assert actual["error"] == expected["error"]
            assert_same(dict(actual_held), dict(expected_held))
            assert_same({**vars(actual_held)}, {**vars(expected_held)})
            assert (vars(actual_held) is actual_held) is not apart


class Answering(collections.defaultdict):
    def __missing__(self, key):
        return f"no {key}"


class FillingIn(collections.defaultdict):
    def __missing__(self, key):
        if key == "b":
            return super().__missing__(key)
        self[key] = 3
        return 4


class NotingSets(collections.defaultdict):
    def __setitem__(self, key, value):
        ASKED.append(key)
        super().__setitem__(key, value)


def reads_what_is_missing(x, held):
    made = type(held)(int)
    return x, [held["a"], held["b"], made["a"], made["b"]], dict(held), dict(made), "c" in held


@pytest.mark.parametrize("kind", [collections.defaultdict, Answering, FillingIn, NotingSets])
def test_what_a_defaultdict_lacks_is_asked_of_its_class(kind):
    made = compiled(reads_what_is_missing)
    expected_held, actual_held = kind(lambda: 5), kind(lambda: 5)
    for _ in range(3):
        seen = []
        for function, held in ((reads_what_is_missing, expected_held), (made, actual_held)):
            ASKED.clear()
            seen.append([function(torch.ones(2), held), [*ASKED], dict(held)])
        assert_same(seen[1], seen[0])


class OtherSet(set):
    """A set that gives other elements than it stores."""

    def __iter__(self):
        ASKED.append("iter")
        return iter([7, 1])

    def __len__(self):
        ASKED.append("len")
        return 3

    def __contains__(self, item):
        ASKED.append("contains")
        return True


class OtherFrozenSet(frozenset):
    def __iter__(self):
        ASKED.append("iter")
        return iter([7, 1])


class UpperKeys(dict):
    """A dict that gives other keys and values than it stores."""

    def __iter__(self):
        ASKED.append("iter")
        return iter([key.upper() for key in dict.keys(self)])

    def keys(self):
        ASKED.append("keys")
        return [*self]

    def __getitem__(self, key):
        ASKED.append(key)
        return dict.__getitem__(self, key.lower()) * 10


class Tenfold(dict):
    def __getitem__(self, key):
        ASKED.append(key)
        return dict.__getitem__(self, key) * 10


class NotingOrdered(collections.OrderedDict):
    def __setitem__(self, key, value):
        ASKED.append(key)
        super().__setitem__(key, value)

    def __getitem__(self, key):
        ASKED.append(key)
        return super().__getitem__(key)


def new_sets(x, held):
    target = {3}
    target |= held
    return x, set(held), frozenset(held), {*held, 4}, [*held], {1} | held, held | {5}, target


def methods_of_sets(x, held):
    plain = {1, 7, 9}
    made = plain.union(held), plain - held, plain.difference(held), plain & held, plain ^ held
    asked = {1, 2}.issuperset(held), {1}.issubset(held), {9}.isdisjoint(held), held == {1, 2}
    plain.update(held)
    return x, made, asked, plain, dict.fromkeys(held, 0), held.copy()


def sets_with_views(x, held):
    keys = {1: 0, 7: 0}.keys()
    return x, keys & held, keys | held, keys - held, keys ^ held, held | keys, keys.isdisjoint(held)


def new_dicts(x, held):
    target = {"b": 1}
    target |= held
    made = dict(held), {**held}, dict(**held), collections.OrderedDict(held)
    return x, made, target, {"c": 2} | held, held | {"d": 3}, held | held


def methods_of_dicts(x, held):
    ordered = collections.OrderedDict(b=1)
    ordered.update(held)
    ordered |= held
    ordered = ordered | held
    views = {"a": 1, "A": 2}.keys() & held, {"b": 1}.keys() | held
    return x, ordered, views, collections.defaultdict(int, held), dict.copy(held), set(held)


def changes_ordered(x, held):
    made = type(held)(b=1)
    made.update(c=2)
    found = held.setdefault("a", 3), held.setdefault("d", 4), held.pop("d")
    held.update({"e": 5})
    return x, [*made.items()], found, [*held.items()]


def changes_sets(x, held):
    set.update(held, [4])
    set.discard(held, 1)
    return x


def changes_dicts(x, held):
    dict.__setitem__(held, "a", x)
    held.update(b=x)
    dict.pop(held, "b")
    return x


def stored(value):
    """What a result holds, past what its class says."""
    for kind in (set, frozenset):
        if isinstance(value, kind):
            return type(value).__name__, sorted(kind.__iter__(value))
    if isinstance(value, dict):
        return type(value).__name__, [(key, str(item)) for key, item in dict.items(value)]
    return [*map(stored, value)] if isinstance(value, tuple) else str(value)


SET_CLASSES = (OtherSet, OtherFrozenSet, set)
DICT_CLASSES = (UpperKeys, Tenfold, dict)


@pytest.mark.parametrize(
    ("function", "kinds", "elements"),
    [
        *((function, SET_CLASSES, [1, 2]) for function in (new_sets, methods_of_sets)),
        (sets_with_views, SET_CLASSES, [1, 2]),
        (changes_sets, [OtherSet, set], [1, 2]),
        *((function, DICT_CLASSES, {"a": 1}) for function in (new_dicts, methods_of_dicts)),
        *((function, DICT_CLASSES, {}) for function in (new_dicts, methods_of_dicts)),
        (changes_dicts, DICT_CLASSES, {"a": 1}),
        (changes_ordered, [NotingOrdered, collections.OrderedDict], {"a": 1}),
    ],
)
def test_containers_are_asked_only_where_python_asks(function, kinds, elements):
    for kind in kinds:
        made = compiled(function)
        for _ in range(2):
            seen = []
            for called in (function, made):
                held = kind(elements)
                ASKED.clear()
                result = called(torch.ones(2), held)
                asked = [*ASKED]
                seen.append((stored(result), stored(held), asked))
            assert seen[1] == seen[0], kind


class Sharing:
    """An object that shares its attributes with others."""

    def __init__(self, attributes):
        self.__dict__ = attributes


def writes_shared_attributes(x, one, other):
    one.scale = 5
    y = x * other.scale
    other.scale = 6
    return y, one.scale


def test_objects_may_share_their_attributes():
    made = compiled(writes_shared_attributes)
    for _ in range(2):
        attributes = {"scale": 1}
        found = made(torch.ones(2), Sharing(attributes), Sharing(attributes))
        assert_same(found, (torch.full((2,), 5.0), 6))
        assert attributes == {"scale": 6}
