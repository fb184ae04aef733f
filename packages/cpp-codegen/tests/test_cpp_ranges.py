"""Loops that are cut where conditions on positions change."""

from __future__ import annotations

import operator

import pytest
import torch
from cpp_graphs import CPU, both, buffer

from plait_cpp_codegen.kernels.ranges import ranges
from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    DType,
    Graph,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Pointwise,
    TensorRef,
    Value,
    Var,
    evaluate,
)
from plait_scheduler import Domain, Store

COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
ZERO = Const(0.0, DType.f32)


def compared(name: str, expr: IndexExpr, limit: int) -> Value:
    return Op(name, [IndexValue(expr), Const(limit, DType.i64)])


def stored(value: Value, var: Var) -> Store:
    return Store("p1", (var.expr,), Domain.OUTER, value)


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("stride", [1, -1, 3, -2])
def test_conditions_are_decided_as_they_hold_at_each_point(name, stride):
    for extent in (1, 2, 9):
        for start in range(-12, 13):
            i = Var("i0", extent)
            mask = compared(name, stride * i.expr + start, 1)
            load = Load("p0", [i.expr], DType.f32)
            parts = ranges([stored(Masked(mask, load, ZERO), i)], i)
            holds = [COMPARISONS[name](stride * at + start, 1) for at in range(extent)]
            if not parts:
                assert len(set(holds)) == 1
                continue
            assert [p.begin for p in parts] == [0, *(p.end for p in parts[:-1])]
            assert parts[-1].end == extent
            for part in parts:
                (statement,) = part.statements
                for at in range(part.begin, part.end):
                    assert statement.value is (load if holds[at] else ZERO)


@pytest.mark.parametrize("stride", [1, -1, 5, -3])
@pytest.mark.parametrize("divisor", [4, 7])
def test_coordinates_that_jump_are_cut_where_they_do(stride, divisor):
    for extent in (3, 8, 13):
        for start in range(-9, 10):
            i = Var("i0", extent)
            moved = stride * i.expr + start
            expr = (moved % divisor) * 3 + moved // divisor
            parts = ranges([stored(Load("p0", [expr], DType.f32), i)], i)
            for part in parts:
                (statement,) = part.statements
                (index,) = statement.value.index
                assert "%" not in str(index)
                assert "//" not in str(index)
                for at in range(part.begin, part.end):
                    assert evaluate(index, {"i0": at}) == evaluate(expr, {"i0": at})


def test_coordinates_that_jump_where_memory_does_not_stay_whole():
    """As of images with channels last, whose points are numbered as they lie."""
    sizes, i = (2, 3, 4, 4), Var("i0", 96)
    at = i.expr
    index = (at // 48, at % 3, (at // 12) % 4, (at // 3) % 4)
    layout = Layout.of(sizes, (48, 1, 12, 3))
    store = Store("p1", index, Domain.OUTER, Load("p0", index, DType.f32))
    assert ranges([store], i, {"p0": layout, "p1": layout}) == []
    padded = Masked(compared("lt", at, 48), Load("p0", index, DType.f32), ZERO)
    parts = ranges([Store("p1", index, Domain.OUTER, padded)], i, {"p0": layout, "p1": layout})
    assert [(part.begin, part.end) for part in parts] == [(0, 48), (48, 96)]
    for part in parts:
        (statement,) = part.statements
        assert layout.linear(statement.plain_index) is at


def test_loops_without_borders_stay_whole():
    i, j = Var("i0", 9), Var("i1", 9)
    load = Load("p0", [i.expr], DType.f32)
    below = Op("lt", [IndexValue(i.expr), IndexValue(j.expr)])
    assert ranges([stored(load, i)], i) == []
    assert ranges([stored(Masked(below, load, ZERO), i)], i) == []  # a border for each j
    chosen = Op("where", [compared("lt", i.expr, 4), load, ZERO])
    assert ranges([stored(chosen, i)], i) == []  # nothing is kept from being read


@pytest.mark.parametrize("columns", [1, 7, 40, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.sampled(3)
def test_rows_joined_padded_and_rolled(columns, dtype):
    """Some with blocks of columns: parts begin and end within them."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(3, columns, generator=generator) * 9).to(dtype)
    source = buffer("x", x)
    i, j = Var("i0", 3), Var("i1", 2 * columns + 3)
    k = Var("i1", columns)
    ours = source.dtype
    zero = Const(0, ours)
    first = Load("x", [i.expr, j.expr - 3], ours)
    second = Load("x", [i.expr, 2 * columns + 2 - j.expr], ours)
    both_sides = Masked(
        compared("lt", j.expr, 3),
        zero,
        Masked(
            compared("lt", j.expr, columns + 3),
            Masked(compared("ge", j.expr, 3), first, zero),  # the outer one keeps nothing unread
            Masked(compared("ge", j.expr, columns + 3), second, zero),
        ),
    )
    rolled = Load("x", [i.expr, (k.expr + columns // 3) % columns], ours)
    made = [
        Buffer("joined", ours, CPU, Layout.of([3, 2 * columns + 3])),
        Buffer("rolled", ours, CPU, Layout.of([3, columns])),
    ]
    definitions = [
        Definition((made[0],), Pointwise((i, j), both_sides)),
        Definition((made[1],), Pointwise((i, k), rolled)),
    ]
    graph = Graph("g", (source,), definitions, [TensorRef(each.name) for each in made])
    actual, expected = both(graph, [x])
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e)
    assert torch.equal(actual[0], torch.cat([torch.zeros(3, 3, dtype=dtype), x, x.flip(1)], 1))
    assert torch.equal(actual[1], x.roll(-(columns // 3), 1))


def test_rows_and_columns_have_borders():
    """Conditions of all lanes and of some, in one mask."""
    x = torch.randn(5, 40)
    source = buffer("x", x)
    i, j = Var("i0", 9), Var("i1", 45)
    inside = compared("ge", i.expr - 2, 0)
    for condition in (
        compared("lt", i.expr - 2, 5),
        compared("ge", j.expr - 1, 0),
        compared("lt", j.expr - 1, 40),
    ):
        inside = Op("logical_and", [inside, condition])
    value = Masked(inside, Load("x", [i.expr - 2, j.expr - 1], DType.f32), ZERO)
    made = Buffer("padded", DType.f32, CPU, Layout.of([9, 45]))
    graph = Graph(
        "g", (source,), [Definition((made,), Pointwise((i, j), value))], [TensorRef("padded")]
    )
    (actual,), _ = both(graph, [x])
    assert torch.equal(actual, torch.nn.functional.pad(x, (1, 4, 2, 2)))
