"""Attributes of what is not an argument: modules, classes, and what is reached through them."""

from __future__ import annotations

import dataclasses
import enum
import threading
import types

import pytest
import torch
from torch import nn
from tracer_oracle import compiled

X = torch.ones(2, 3)


def followed(programs, *changes):
    """Compiled and eager results agree, before and after each of some changes."""
    made = list(map(compiled, programs))
    for change in (lambda: None, *changes, lambda: None):
        change()
        for program, function in zip(programs, made, strict=True):
            assert torch.equal(function(X), program(X))


def holders():
    """Objects that any name may come to: modules and classes of every kind."""
    silent = types.ModuleType("silent")
    other = type("Other", (types.ModuleType,), {})("other")
    classes = [type("Plain", (), {}), type("Block", (nn.Module,), {}), enum.Enum("Color", "RED")]
    return [silent, other, *classes]


@pytest.mark.parametrize("place", range(len(holders())))
def test_a_name_that_comes_to_a_module_or_class_is_noticed(place):
    owner = holders()[place]

    def caught(x):
        try:
            return x * owner.flag
        except AttributeError:
            return x * 7

    followed(
        [
            lambda x: x * getattr(owner, "flag", 2),
            lambda x: x * 3 if hasattr(owner, "flag") else x * 5,
            caught,
        ],
        lambda: setattr(owner, "flag", 11),
        lambda: delattr(owner, "flag"),
    )


def test_a_module_that_begins_to_answer_is_noticed():
    owner = types.ModuleType("owner")
    made = compiled(lambda x: x * getattr(owner, "flag", 2))
    assert made(X)[0, 0] == 2
    owner.__getattr__ = {"flag": 3}.__getitem__
    assert made(X)[0, 0] == 3


def test_a_replaced_classmethod_or_property_is_noticed_through_the_class():
    class Thing:
        @classmethod
        def scale(cls, x):
            return x * 2

        @property
        def factor(self):
            return 2

    programs = [lambda x: Thing.scale(x), lambda x: x * Thing.factor.fget(None)]
    made = list(map(compiled, programs))
    assert [int(function(X)[0, 0]) for function in made] == [2, 2]
    Thing.scale = classmethod(lambda cls, x: x * 3)
    Thing.factor = property(lambda self: 3)
    assert [int(function(X)[0, 0]) for function in made] == [3, 3]


class Scale:
    """A descriptor that gives what it holds."""

    def __init__(self, held):
        self.held = held

    def __get__(self, instance, owner=None):
        return self.held * getattr(self, "times", 1)


class Box:
    def __init__(self, value):
        self.value = value


def test_what_a_descriptor_holds_is_guarded():
    scale, tensors = Scale(2), Scale(torch.full((3,), 2.0))

    class Thing:
        factor = scale
        weight = tensors

    thing = Thing()
    followed(
        [lambda x: x * thing.factor, lambda x: x * Thing.factor, lambda x: x * thing.weight],
        lambda: setattr(scale, "held", 3),
        lambda: setattr(scale, "times", 5),
        lambda: delattr(scale, "times"),
        lambda: setattr(tensors, "held", torch.full((3,), 7.0)),
    )


def test_what_is_reached_through_definitions_is_guarded():
    box = Box(2)

    class Slotted:
        __slots__ = ("times", "value")

        def __get__(self, instance, owner=None):
            return self.value * getattr(self, "times", 1)

    class Meta(type):
        held = box

    class Thing(metaclass=Meta):
        factor = Slotted()

    @dataclasses.dataclass
    class Data:
        field: int = dataclasses.field(default=1, metadata={"box": box})

    factor = Thing.__dict__["factor"]
    factor.value = 3
    followed(
        [
            lambda x: x * Thing.held.value,
            lambda x: x * dataclasses.fields(Data)[0].metadata["box"].value,
            lambda x: x * Thing.factor,
        ],
        lambda: setattr(box, "value", 5),
        lambda: setattr(factor, "value", 4),
        lambda: setattr(factor, "times", 7),
        lambda: delattr(factor, "times"),
    )


def test_an_argument_that_a_definition_holds_too_is_told_apart():
    held, other = Box(2), Box(3)

    class Holder:
        def __get__(self, instance, owner=None):
            return self.box

    holder = Holder()
    holder.box = held

    class Thing:
        box = holder

    def program(box, x):
        box.value = 10
        return x * Thing.box.value

    made = compiled(program)
    for box, expected in ((held, 10), (other, 2), (held, 10), (other, 2)):
        held.value = 2
        assert made(box, X)[0, 0] == expected


def test_attributes_of_functions_that_a_class_holds_are_guarded():
    module = types.ModuleType("module")
    module.factor = 2

    class Thing:
        @classmethod
        def make(cls):
            return cls()

        @property
        def size(self):
            return 1

    functions = [Thing.make.__func__, Thing.size.fget]
    for function in functions:
        function.scale, function.module = 2, module
    followed(
        [
            lambda x: x * Thing.make.scale * Thing.size.fget.scale,
            lambda x: x * getattr(Thing.make, "extra", 2) * getattr(Thing.size.fget, "extra", 3),
            lambda x: x * Thing.make.module.factor,
        ],
        lambda: setattr(functions[0], "scale", 3),
        lambda: setattr(functions[1], "scale", 5),
        lambda: setattr(functions[0], "extra", 7),
        lambda: setattr(functions[1], "extra", 11),
        lambda: setattr(module, "factor", 13),
        lambda: delattr(functions[0], "extra"),
    )


class Unit(enum.Enum):
    METER = 1
    MILE = 2

    def __init__(self, number):
        self.length = number * 10

    @classmethod
    def _missing_(cls, value):
        return cls.METER


def test_attributes_of_members_of_enumerations_are_guarded(monkeypatch):
    meter = Unit.METER
    mixed = enum.IntEnum("Level", "LOW HIGH")
    boxed = enum.Enum("Boxed", {"HELD": Box(2)})
    passed = compiled(lambda x, unit: x * unit.length)
    assert passed(X, meter)[0, 0] == 10
    followed(
        [
            lambda x: x * Unit.METER.length,
            lambda x: x * getattr(meter, "extra", 1),
            lambda x: x * Unit(9).length,
            lambda x: x * sum(unit.length for unit in Unit),
            lambda x: x * getattr(mixed.HIGH, "length", mixed.HIGH.bit_length()),
            lambda x: x * boxed.HELD.value.value,
        ],
        lambda: monkeypatch.setattr(meter, "length", 77),
        lambda: monkeypatch.setattr(meter, "extra", 5, raising=False),
        lambda: monkeypatch.delattr(meter, "extra"),
        lambda: monkeypatch.setattr(Unit, "extra", 6, raising=False),
        lambda: monkeypatch.setattr(Unit, "_missing_", classmethod(lambda cls, value: cls.MILE)),
        lambda: setattr(mixed.HIGH, "length", 4),
        lambda: setattr(boxed.HELD.value, "value", 3),
    )
    assert passed(X, meter)[0, 0] == 77


def test_what_a_call_sets_on_a_member_of_an_enumeration_is_read_there(monkeypatch):
    monkeypatch.setattr(Unit.MILE, "length", 20)

    def program(x):
        Unit.MILE.length += 1
        return x * Unit.MILE.length

    made = compiled(program)
    assert [int(made(X)[0, 0]) for _ in range(3)] == [21, 22, 23]
    assert Unit.MILE.length == 23


class PerThread(threading.local):
    scale = 2

    def __init__(self):
        self.own = 3


def test_what_each_thread_has_of_its_own_is_guarded():
    plain, own = threading.local(), PerThread()
    programs = [
        lambda x: x * getattr(plain, "flag", 2),
        lambda x: x * 3 if hasattr(plain, "flag") else x * 5,
        lambda x: x * own.scale * own.own,
        lambda x: x * len(plain.__dict__),
    ]
    followed(
        programs,
        lambda: setattr(plain, "flag", 11),
        lambda: setattr(own, "scale", 7),
        lambda: delattr(plain, "flag"),
    )


def test_other_threads_have_their_own():
    own = PerThread()
    own.scale = own.own = 5
    made = compiled(lambda x: x * own.scale * own.own * getattr(own, "flag", 1))
    found = []
    own.flag = 2
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(int(made(X)[0, 0])))
        thread.start()
        thread.join()
        found.append(int(made(X)[0, 0]))
    assert found == [6, 50, 6, 50]


def test_what_a_call_sets_for_its_thread_is_there_in_the_next():
    plain = threading.local()

    def count(x):
        plain.depth = getattr(plain, "depth", 0) + 1
        plain.last = x
        del plain.last
        return x * plain.depth

    made = compiled(count)
    assert [int(made(X)[0, 0]) for _ in range(3)] == [1, 2, 3]
    assert vars(plain) == {"depth": 3}


def a_class_with_a_metaclass():
    class Base(type):
        inherited = 3

        def __len__(cls):
            return 4

    class Meta(Base):
        value = 2

        @property
        def double(cls):
            return cls.value * 2

        def __getattr__(cls, name):
            if name == "missing":
                raise AttributeError(name)
            return 5

        def __contains__(cls, item):
            return cls.value == item

        def __instancecheck__(cls, instance):
            return cls.value == 2

    class Thing(metaclass=Meta):
        own = 7

        def __init__(self):
            self.size = 1

    return Base, Meta, Thing


def test_what_a_class_gets_from_its_metaclass_is_guarded():
    base, meta, thing = a_class_with_a_metaclass()
    followed(
        [
            lambda x: x * thing.value * thing.inherited,
            lambda x: x * thing.double,
            lambda x: x * thing.anything,
            lambda x: x * getattr(thing, "missing", 8),
            lambda x: x * (3 if 2 in thing else 4),
            lambda x: x * (3 if isinstance(x, thing) else 4),
            lambda x: x * thing().size * thing.own,
            lambda x: x * len(thing),
        ],
        lambda: setattr(meta, "value", 3),
        lambda: setattr(base, "inherited", 4),
        lambda: setattr(meta, "__getattr__", lambda cls, name: 6),
        lambda: setattr(meta, "__call__", lambda cls: types.SimpleNamespace(size=9)),
        lambda: setattr(thing, "value", 4),
        lambda: setattr(thing, "anything", 11),
        lambda: setattr(meta, "own", property(lambda cls: 12)),
        lambda: setattr(base, "__len__", lambda cls: 13),
        lambda: delattr(thing, "value"),
        lambda: delattr(meta, "__getattr__") or setattr(thing, "missing", 2),
    )


def test_what_comes_to_a_metaclass_is_noticed():
    class Meta(type):
        pass

    class Thing(metaclass=Meta):
        def __init__(self):
            self.size = 1

    followed(
        [
            lambda x: x * getattr(Thing, "value", 2),
            lambda x: x * Thing().size,
            lambda x: x * (3 if isinstance(x, Thing) else 4),
        ],
        lambda: setattr(Meta, "value", 3),
        lambda: setattr(Meta, "__call__", lambda cls: types.SimpleNamespace(size=9)),
        lambda: setattr(Meta, "__instancecheck__", lambda cls, instance: True),
        lambda: delattr(Meta, "value"),
        lambda: setattr(Meta, "__getattr__", lambda cls, name: 5),
    )


class Tagged(torch.Tensor):
    tag = 2

    def scaled(self):
        return self.as_subclass(torch.Tensor) * 3


def test_what_a_tensor_of_a_subclass_hides_of_its_class_is_noticed():
    tensor = X.as_subclass(Tagged)
    programs = [lambda x: x * tensor.tag, lambda x: x * tensor.scaled()]
    followed(
        programs,
        lambda: setattr(tensor, "tag", 6),
        lambda: setattr(tensor, "scaled", lambda: 5),
        lambda: delattr(tensor, "tag"),
        lambda: delattr(tensor, "scaled"),
    )


def test_the_names_and_bases_of_classes_are_guarded():
    meta = type("Meta", (type,), {})
    base, other = type("Base", (), {}), type("Other", (), {})
    plain, made_by_meta = type("Plain", (base,), {}), meta("ByMeta", (), {})
    color = enum.Enum("Color", "RED")
    value = plain()

    def named(x):
        return x * len(type(value).__name__) + len(made_by_meta.__name__) * len(color.__qualname__)

    followed(
        [
            named,
            lambda x: x * len(f"{plain} {color.RED!r}") + len(str(made_by_meta)),
            lambda x: x * len(plain.__mro__) + len(plain.__bases__),
            lambda x: x * (plain.__base__ is base),
        ],
        lambda: setattr(plain, "__name__", "Renamed"),
        lambda: setattr(plain, "__qualname__", "RenamedAsWell"),
        lambda: setattr(made_by_meta, "__qualname__", "Renamed"),
        lambda: setattr(made_by_meta, "__name__", "R"),
        lambda: setattr(color, "__name__", "Colour"),
        lambda: setattr(color, "__qualname__", "Hue"),
        lambda: setattr(plain, "__bases__", (other, base)),
    )
