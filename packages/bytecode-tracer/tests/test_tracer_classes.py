"""Classes that traced code defines: captured whole, fresh in each call, never run while tracing."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch
from torch import nn
from tracer_oracle import compiled

from plait_bytecode_tracer.making.made import StandInCalledError, function_stand_in
from plait_bytecode_tracer.values.variables import FunctionVariable


class Base:
    hooked: list[str] = []

    def __init_subclass__(cls) -> None:
        cls.hooked.append(cls.__name__)


def _graphs(made: object) -> list[object]:
    return [entry for member in made.family() for entry in member.entries]


def test_a_class_and_its_instances_are_one_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        @dataclasses.dataclass
        class Pair:
            first: torch.Tensor
            second: int = 2

            def total(self) -> torch.Tensor:
                return self.first * self.second

        return Pair(x).total() + Pair(x, 3).total()

    made = compiled(program, fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(made(x), program(x))
    assert len(_graphs(made)) == 1


def test_each_call_makes_its_own_class() -> None:
    def program(x: torch.Tensor) -> type:
        class Local:
            def me(self) -> type:
                return __class__

        return Local

    made = compiled(program, fullgraph=True)
    x = torch.ones(2)
    one, other = made(x), made(x)
    assert one is not other
    assert one().me() is one
    assert one.__qualname__ == program(x).__qualname__
    assert list(vars(one)) == list(vars(program(x)))


def test_hooks_run_once_for_each_call() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        class Local(Base):
            pass

        return x + len(Local.__name__)

    made = compiled(program, fullgraph=True)
    Base.hooked.clear()
    for count in (1, 2, 3):
        made(torch.ones(2))
        assert Base.hooked == ["Local"] * count


def test_prototypes_die_with_the_trace() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        class Local(Base):
            def run(self) -> torch.Tensor:
                return x + 1

        return Local().run()

    made = compiled(program, fullgraph=True)
    made(torch.ones(2))
    gc.collect()
    assert [cls.__name__ for cls in Base.__subclasses__()] == []
    assert weakref.ref(made)() is made


def test_stand_ins_of_functions_cannot_run() -> None:
    def outer(free: int) -> object:
        def function(a: int, *, b: int = 1) -> int:
            return a + b + free

        return function

    code = outer(1).__code__
    stand_in = function_stand_in(
        FunctionVariable(code, globals(), "function"), StandInCalledError()
    )
    assert stand_in.__code__.co_varnames[:2] == ("a", "b")
    with pytest.raises(StandInCalledError):
        stand_in(1, b=2)


def test_a_break_inside_a_class_body_runs_the_statement_once() -> None:
    log: list[int] = []

    def program(x: torch.Tensor) -> tuple[int, torch.Tensor]:
        x = x + 1

        class Local:
            log.append(len(log))
            total = float(x.sum())

        return Local.total, x * 2

    made = compiled(program)
    expected = program(torch.ones(2))
    log.clear()
    found = made(torch.ones(2))
    assert log == [0]
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


def made_in_a_function():
    """A layer whose class, its base and what this may be replaced by are a function's."""

    class Base(nn.Module):
        @property
        def factor(self):
            return 2

        @classmethod
        def shift(cls):
            return 3

        def forward(self, x):
            return x + 1

    class Other(Base):
        def forward(self, x):
            return x + 10

    class Layer(Base):
        def __init__(self):
            super().__init__()
            self.count = 4

        @property
        def factor(self):
            return super().factor + 1

        @classmethod
        def shift(cls):
            return super().shift() + super().shift()

        def forward(self, x):
            def inner(y):
                return super(__class__, self).forward(y)

            both = [super(Layer, self).forward(x) for _ in range(2)]
            return super().forward(x) * self.factor + inner(x) * self.shift() + sum(both)

    return Base, Other, Layer


def test_layers_whose_classes_functions_make_go_through_super_without_a_break():
    base, other, cls = made_in_a_function()
    layer, x = cls(), torch.arange(3.0)
    made = compiled(lambda x: layer(x))

    def outcome(call):
        try:
            return call(x).tolist()
        except (AttributeError, RuntimeError, NameError) as error:  # NameError: since 3.12
            return type(error), str(error)

    def agree():
        assert outcome(made) == outcome(layer)

    agree()
    assert not made.breaks
    base.forward = lambda self, x: x + 5
    agree()
    cls.__bases__ = (other,)
    agree()
    cls.__bases__ = (base,)
    agree()
    assert not made.breaks
    cell = cls.forward.__closure__[cls.forward.__code__.co_freevars.index("__class__")]
    cell.cell_contents = nn.Module
    agree()
    del cell.cell_contents
    agree()
    cell.cell_contents = cls
    agree()
