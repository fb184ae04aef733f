"""Objects whose class notes what is asked of them are asked what plain Python asks, and no more."""

import sys
import types

import pytest
import torch
from torch import nn

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
