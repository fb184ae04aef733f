"""Conditions fold exactly where all points of the loops agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait_ir_lowering import Const, DType, IndexValue, Load, Masked, Op, Value, Var, evaluate
from plait_scheduler.fold import fold

I0 = Var("i0", 10)
TRUE, FALSE = Const(True, DType.bool_), Const(False, DType.bool_)
OPEN = Op("lt", [Load("x", [I0.expr], DType.f32), Const(0.0, DType.f32)])
X, Y = Load("x", [I0.expr], DType.f32), Load("y", [I0.expr], DType.f32)
COMPARE = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@given(
    st.sampled_from(sorted(COMPARE)), st.integers(-3, 3), st.integers(-25, 25), st.integers(-25, 25)
)
def test_comparisons_fold_only_to_what_every_point_gives(
    name: str, factor: int, offset: int, limit: int
) -> None:
    expr = I0.expr * factor + offset
    found = fold(Op(name, [IndexValue(expr), Const(limit, DType.i64)]))
    points = {COMPARE[name](evaluate(expr, {"i0": i}), limit) for i in range(10)}
    if len(points) == 1:
        assert found is (TRUE if points.pop() else FALSE)
    else:
        assert found is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Op("logical_and", [OPEN, TRUE]), OPEN),
        (Op("logical_and", [FALSE, OPEN]), FALSE),
        (Op("logical_or", [OPEN, FALSE]), OPEN),
        (Op("logical_or", [TRUE, OPEN]), TRUE),
        (Op("logical_not", [TRUE]), FALSE),
        (Op("where", [TRUE, X, Y]), X),
        (Op("where", [FALSE, X, Y]), Y),
        (Op("where", [OPEN, TRUE, FALSE]), OPEN),
        (Op("where", [OPEN, FALSE, TRUE]), Op("logical_not", [OPEN])),
        (Masked(TRUE, X, Y), X),
        (Masked(FALSE, X, Y), Y),
        (Op("where", [OPEN, X, Y]), None),
        (Masked(OPEN, X, Y), None),
        (Op("add", [X, Y]), None),
    ],
)
def test_rules(value: Value, expected: Value | None) -> None:
    assert fold(value) is expected


POSITIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "rem": lambda a, b: a % b,
    "floordiv": lambda a, b: a // b,
}


@given(
    st.sampled_from(sorted(POSITIONS)), st.integers(-3, 3), st.integers(-9, 9), st.integers(1, 9)
)
def test_arithmetic_on_positions_is_exact_at_every_point(
    name: str, factor: int, offset: int, other: int
) -> None:
    expr = I0.expr * factor + offset
    found = fold(Op(name, [IndexValue(expr), Const(other, DType.i64)]))
    assert isinstance(found, IndexValue)
    for i in range(10):
        at = {"i0": i}
        assert evaluate(found.expr, at) == POSITIONS[name](evaluate(expr, at), other)


@pytest.mark.parametrize("name", ["rem", "floordiv"])
@pytest.mark.parametrize("divisor", [0, -2])
def test_other_divisions_of_positions_stay(name: str, divisor: int) -> None:
    assert fold(Op(name, [IndexValue(I0.expr), Const(divisor, DType.i64)])) is None


def test_products_of_two_positions_stay() -> None:
    assert fold(Op("mul", [IndexValue(I0.expr), IndexValue(I0.expr + 1)])) is None
