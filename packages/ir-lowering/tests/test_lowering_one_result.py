"""Which operations of the loop IR round nothing. That they agree is tested where code is made."""

from __future__ import annotations

import pytest

from plait_ir_lowering import OPS, Const, DType, Op, has_one_result
from plait_ir_lowering.ir.one_result import _CONDITIONS


def converted(source, target):
    return has_one_result(Op("to", [Const(0, source)], target))


def test_every_name_is_an_operation():
    assert _CONDITIONS.keys() <= OPS.keys()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("bf16", "f32"),
        ("f16", "f64"),
        ("i16", "f32"),
        ("u8", "bf16"),
        ("i64", "i8"),
        ("f32", "bool"),
    ],
)
def test_conversions_that_keep_a_value_or_wrap_around(source, target):
    names = {each.text: each for each in DType}
    assert converted(names[source], names[target])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("f32", "f16"),
        ("f16", "bf16"),
        ("i32", "f32"),
        ("i64", "f64"),
        ("f32", "i64"),
        ("i16", "f16"),
    ],
)
def test_conversions_that_round(source, target):
    names = {each.text: each for each in DType}
    assert not converted(names[source], names[target])


@pytest.mark.parametrize("name", ["add", "mul", "maximum"])
def test_arithmetic_is_that_of_integers_alone(name):
    def made(dtype):
        return has_one_result(Op(name, [Const(0, dtype), Const(1, dtype)]))

    assert made(DType.i32)
    assert not made(DType.f32)
