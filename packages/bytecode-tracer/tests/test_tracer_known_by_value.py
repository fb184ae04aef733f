"""Values that stand behind other objects: what is inside them is guarded where it is used."""

from __future__ import annotations

import operator
import types

import numpy as np
import pytest
import torch
from tracer_oracle import compiled

X = torch.arange(3.0) + 1
SHIFTS = types.SimpleNamespace(sin=2, cos=3)


class Name(str):
    """Text of a class of the user's."""

    __slots__ = ()


class Count(int):
    """A number of a class of the user's."""


def written(name):
    made = types.SimpleNamespace()
    setattr(made, name, 1)
    return 2 if hasattr(made, "sin") else 5


PROGRAMS = {
    "a method": lambda x, name: getattr(x, name)(),
    "an attribute": lambda x, name: x * getattr(SHIFTS, name),
    "whether there is one": lambda x, name: x * (2 if hasattr(torch, name[:2] + "z") else 5),
    "a name that is written": lambda x, name: x * written(name),
    "a getter": lambda x, name: x * operator.attrgetter(name)(SHIFTS),
    "a method caller": lambda x, name: operator.methodcaller(name)(x),
    "a search": lambda x, name: x * (2 if name in "a sin" else 5),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_text_of_a_class_of_the_users_is_guarded(what):
    program = PROGRAMS[what]
    made = compiled(program)
    for name in ("sin", "sin", "cos", "cos", "sin"):
        assert torch.equal(made(X, Name(name)), program(X, Name(name)))


def test_text_that_names_a_type_of_numpy_is_guarded():
    made = compiled(lambda x, name: torch.from_numpy(np.ones(3, dtype=name)))
    for name in ("float32", "float64", "float32"):
        assert made(X, Name(name)).dtype is getattr(torch, name)


def test_a_number_that_is_searched_in_bytes_is_guarded():
    made = compiled(lambda x, number: x * (2 if number in b"ab" else 5))
    for number in (97, 99, 98):
        assert made(X, Count(number))[0] == (5 if number == 99 else 2)
    with pytest.raises(TypeError, match="not Count"):
        compiled(lambda x, number: x * (number in "ab"))(X, Count(1))


@pytest.mark.parametrize("place", ["argument", "attribute"])
def test_another_compiled_function_is_noticed(place):
    def scaled(factor):
        return compiled(lambda x: x * factor)

    holder = types.SimpleNamespace()
    given = compiled(lambda x, function: function(x) + 1)
    read = compiled(lambda x: holder.function(x) + 1)
    functions = {factor: scaled(factor) for factor in (2, 3)}
    for factor in (2, 2, 3, 3, 2):
        holder.function = functions[factor]
        found = given(X, holder.function) if place == "argument" else read(X)
        assert torch.equal(found, X * factor + 1)
