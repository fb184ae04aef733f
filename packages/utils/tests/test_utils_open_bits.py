"""Python's operators on bits as arithmetic."""

from __future__ import annotations

import operator
import random

import pytest
from open_numbers import symbolic

from plait_utils.open_bits import BITS


def value_of(number, value):
    if type(number) is int:
        return number
    expression = number.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, value)))


MASKS = (0, 1, 3, 6, 8, 255, 0b1011, 0b110011, 2**31 - 1, -1, -4, -8, ~0b1011)


@pytest.mark.parametrize("function", BITS, ids=lambda function: function.__name__)
def test_bits_are_those_of_python(function):
    generator = random.Random(3)
    values = [0, 1, -1, 7, -8, *(generator.randint(-(2**40), 2**40) for _ in range(10))]
    n = symbolic(5)
    places = (0, 1, 5, 40)
    given = places if function in (operator.lshift, operator.rshift) else MASKS
    for other in [()] if function is operator.invert else [(each,) for each in given]:
        made = BITS[function](n, *other)
        for value in values:
            assert value_of(made, value) == function(value, *other), (value, other)


def test_what_is_not_known_is_left_to_others():
    n = symbolic(5)
    assert BITS[operator.lshift](n, -1) is NotImplemented
    assert BITS[operator.lshift](n, 80) is NotImplemented
    assert BITS[operator.lshift](1, n) is NotImplemented
    assert BITS[operator.and_](n, n) is NotImplemented
    assert BITS[operator.and_](n, 0b101010101010) is NotImplemented
    assert BITS[operator.and_](n, True) is NotImplemented
    assert BITS[operator.and_](3, 5) is NotImplemented
