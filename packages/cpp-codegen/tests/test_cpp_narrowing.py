"""Coordinates of 64 bits that loops compute in 32, and how elements are read at them."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import CPU, both, buffer

from plait_cpp_codegen.kernels.narrowing import fits, is_narrow
from plait_cpp_codegen.kernels.positions import never_negative, recombined
from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    DType,
    Graph,
    IndexValue,
    Layout,
    Load,
    Op,
    Pointwise,
    Sym,
    TensorRef,
    Value,
    Var,
    as_index,
    from_torch_dtype,
)

ROW = Var("i0", 1000)
PLACE = IndexValue(ROW.expr)


def whole(number: int) -> Value:
    return Const(number, DType.i64)


def test_what_fits_is_narrow():
    index = Load("x", [ROW.expr], DType.i64)
    small = Op("to", [Load("x", [ROW.expr], DType.i32)], DType.i64)
    limited = Op("minimum", [Op("to", [PLACE], DType.i32), Const(7, DType.i32)])
    for value in (
        PLACE,
        whole(2**31 - 1),
        small,
        Op("mul", [PLACE, whole(2_000_000)]),
        Op("minimum", [Op("to", [limited], DType.i64), whole(3)]),
        CheckedIndex(index, as_index(30522)),
        Op("where", [Op("lt", [PLACE, whole(5)]), PLACE, whole(0)]),
    ):
        assert is_narrow(value), value
    for value in (
        index,
        whole(2**31),
        IndexValue(ROW.expr * 3_000_000),
        IndexValue(Var("i1", Sym("s0").expr).expr),
        Op("add", [small, whole(1)]),
        Op("mul", [PLACE, whole(3_000_000)]),
        CheckedIndex(index, as_index(2**31 + 1)),
        CheckedIndex(index, Sym("s0").expr),
        Op("to", [Load("x", [ROW.expr], DType.f32)], DType.i64),
        Op("where", [Op("lt", [PLACE, whole(5)]), PLACE, index]),
    ):
        assert not is_narrow(value), value
    assert not is_narrow(Load("x", [ROW.expr], DType.f32))


def test_offsets_that_fit():
    assert fits(Layout.of([2**20, 2**11]))
    assert not fits(Layout.of([2**20 + 1, 2**11]))
    assert not fits(Layout.of([2, 2], [2**31, 1]))
    assert not fits(Layout.of([Sym("s0").expr]))


def test_parts_of_one_number_are_joined():
    x = Load("x", [ROW.expr], DType.i64)
    rows = Op("floordiv", [x, whole(12)])
    middle = Op("rem", [Op("floordiv", [x, whole(4)]), whole(3)])
    last = Op("rem", [x, whole(4)])
    places = [(rows, as_index(12)), (middle, as_index(4)), (last, as_index(1))]
    assert recombined(places) == [(x, as_index(1))]
    assert recombined(places[:2]) == [(Op("floordiv", [x, whole(4)]), as_index(4))]
    spaced = [(rows, as_index(24)), (middle, as_index(4)), (last, as_index(1))]
    assert recombined(spaced) == spaced


def test_checks_that_refuse_what_is_negative():
    index, size = Load("x", [ROW.expr], DType.i64), as_index(9)
    below = Op("lt", [index, whole(0)])
    assert (
        never_negative(CheckedIndex(Op("where", [below, IndexValue(size), index]), size)) is index
    )
    assert never_negative(CheckedIndex(index, size)) is None
    assert never_negative(CheckedIndex(Op("where", [below, whole(8), index]), size)) is None


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str
)
@pytest.mark.parametrize("scale", [0.3, 1.0, 2.7, -1.0])
@pytest.mark.sampled(3)
def test_elements_near_each_other_and_far_apart(dtype, scale):
    """Places that follow from positions: within one vector of memory, further apart, backwards;
    the last ones end where the tensor does."""
    x = (torch.randn(6, 41) * 9).to(dtype)
    source, ours = buffer("x", x), from_torch_dtype(dtype)
    i, j = Var("i0", 6), Var("i1", 41)
    real = Op("mul", [Op("to", [IndexValue(j.expr)], DType.f32), Const(scale, DType.f32)])
    if scale < 0:
        real = Op("add", [real, Const(40.0, DType.f32)])
    place = Op("minimum", [Op("to", [real], DType.i32), Const(40, DType.i32)])
    value = Load("x", [i.expr, Op("to", [place], DType.i64)], ours)
    made = Buffer("y", ours, CPU, Layout.of([6, 41]))
    graph = Graph("g", (source,), [Definition((made,), Pointwise((i, j), value))], [TensorRef("y")])
    (actual,), _ = both(graph, [x])
    columns = torch.arange(41, dtype=torch.float32) * scale + (40 if scale < 0 else 0)
    assert torch.equal(actual, x[:, columns.int().clamp(max=40).long()])
