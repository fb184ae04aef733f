"""Objects that note each attribute that is asked of them: none more than in plain Python."""

from __future__ import annotations

import sys
import types

from torch import nn

from conformance.declare import case, t, with_x

ASKED = []


class Noting:
    def __init__(self, value):
        self.value = value

    def __getattribute__(self, name):
        ASKED.append(name)
        return object.__getattribute__(self, name)

    def double(self, x):
        return x * self.value * 2


class NotingModule(types.ModuleType):
    def __getattribute__(self, name):
        ASKED.append(name)
        return types.ModuleType.__getattribute__(self, name)


class NotingLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2

    def __getattribute__(self, name):
        if name == "__class__":
            ASKED.append(name)
        return super().__getattribute__(name)

    def forward(self, x):
        return x * self.scale


MODULE = NotingModule("noting")
MODULE.value = 3
HELD = Noting(2)


def _objects():
    for value in (2, 3, 2):
        MODULE.value = value + 1
        yield t(2), Noting(value), [Noting(1)]


@case(_objects)
def objects_given(x, one, held):
    ASKED.clear()
    held.append(one)
    y = one.double(x) + held[0].value + HELD.value
    return y, [*ASKED], one is held[1], one == HELD


@case(_objects)
def across_a_break(x, one, held):
    ASKED.clear()
    y = one.double(x)
    sys.getswitchinterval()
    y = y + one.value + MODULE.value
    one.value = 5
    MODULE.value = 7
    return y, [*ASKED], one, held


@case(with_x(1, 2))
def made_in_the_call(x, n):
    ASKED.clear()
    made = NotingModule("made")
    made.value = n
    y = x * made.value
    del made.value
    return y, [*ASKED]


def _layers():
    for _ in range(2):
        yield t(2), NotingLayer()


@case(_layers)
def layers_given(x, layer):
    ASKED.clear()
    return layer(x), [*ASKED]
