"""Objects of C's classes that come from outside: another one of the same class is noticed."""

from __future__ import annotations

import operator
import types
import typing

import numpy as np
import pytest
import torch
from tracer_oracle import compiled

X = torch.arange(6.0).reshape(2, 3) + 1


def kinds(held, x):
    return x * (2 if isinstance(3, held) or isinstance([], held) else 5)


def on_array(held, x):
    return torch.as_tensor(held(x.numpy()))


PAIRS = {
    "item getters": (operator.itemgetter, (0,), (1,), lambda held, x: x * held((5, 6))),
    "attribute getters": (operator.attrgetter, ("real",), ("imag",), lambda held, x: x * held(3j)),
    "method callers": (operator.methodcaller, ("sin",), ("cos",), lambda held, x: held(x)),
}
"""Classes, what two of their objects are made of, and a program that uses one."""
SINGLE = {
    "methods of tensors": (torch.Tensor.sin, torch.Tensor.cos, lambda held, x: held(x)),
    "attributes of tensors": (
        *(torch.Tensor.T.__get__, torch.Tensor.data.__get__),
        lambda held, x: held(x) * 2,
    ),
    "operators": (torch.ops.aten.sin, torch.ops.aten.cos, lambda held, x: held(x)),
    "overloads": (
        *(torch.ops.aten.sin.default, torch.ops.aten.cos.default),
        lambda held, x: held(x),
    ),
    "loops of NumPy": (np.sin, np.cos, on_array),
    "functions of NumPy": (np.sum, np.mean, on_array),
    "methods of text": (str.upper, str.lower, lambda held, x: x * ("Aa".find(held("a")) + 3)),
    "operators of numbers": (int.__add__, int.__mul__, lambda held, x: x * held(2, 3)),
    "bound operators": ((3).__add__, (3).__mul__, lambda held, x: x * held(2)),
    "what they are bound to": ((3).__add__, (4).__add__, lambda held, x: x * held(2)),
    "objects compared": (str.upper, str.lower, lambda held, x: x * (2 if held is str.upper else 5)),
    "unions": (int | None, float | None, kinds),
    "unions of typing": (typing.Optional[int], typing.Optional[float], kinds),  # noqa: UP045
    "abstract containers": (typing.Sequence, typing.Mapping, kinds),
}


def assert_followed(one, other, program):
    """It is noticed where one object is followed by another, wherever it comes from."""
    space = types.SimpleNamespace(held=one)
    listed = [one]

    def given(value):
        return compiled_program(X, value)

    def read(value):
        space.held = value
        return compiled_read(X)

    def in_list(value):
        listed[0] = value
        return compiled_item(X)

    compiled_program = compiled(lambda x, held: program(held, x))
    compiled_read = compiled(lambda x: program(space.held, x))
    compiled_item = compiled(lambda x: program(listed[0], x))
    for run in (given, read, in_list):
        for value in (one, one, other, other, one):
            torch.testing.assert_close(run(value), program(value, X))


@pytest.mark.parametrize("name", SINGLE)
def test_another_object_of_the_same_class_in_c_is_noticed(name):
    assert_followed(*SINGLE[name])


@pytest.mark.parametrize("name", PAIRS)
def test_another_getter_is_noticed(name):
    cls, one, other, program = PAIRS[name]
    assert_followed(cls(*one), cls(*other), program)


@pytest.mark.parametrize("name", PAIRS)
def test_getters_that_are_made_for_each_call_fit_by_their_parts(name):
    cls, parts, _, program = PAIRS[name]
    made = compiled(lambda x, held: program(held, x))
    for _ in range(3):
        assert torch.equal(made(X, cls(*parts)), program(cls(*parts), X))
    assert not made.recompiles


def test_arguments_by_name_of_method_callers_are_parts():
    made = compiled(lambda x, held: held(x))
    for low in (2, 4, 2):
        held = operator.methodcaller("clamp", min=low)
        assert torch.equal(made(X, held), held(X))
    assert len(made.recompiles) == 1


def test_another_getter_as_a_key_is_noticed():
    made = compiled(lambda x, key: x * sorted([(5, 6), (7, 1)], key=key)[0][0])
    for place in (0, 1, 0):
        assert made(X, operator.itemgetter(place))[0, 0] == (7 if place else 5)
