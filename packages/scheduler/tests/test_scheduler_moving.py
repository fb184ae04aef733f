"""Which programs only move data, and at how many points."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_graphs import CPU, F32

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
    Masked,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    Sym,
    TensorRef,
    Var,
    as_index,
)
from plait_scheduler import moved_points, schedule

A, B = Var("i0", 8), Var("i1", 16)
X = Load("x", [A.expr, B.expr], F32)
ROW = Load("rows", [A.expr], DType.i64)


def graph(*values, ranges=(A, B), size=(8, 16)):
    inputs = (
        Buffer("x", F32, CPU, Layout.of(size)),
        Buffer("rows", DType.i64, CPU, Layout.of(size[:1])),
    )
    made = [
        Definition((Buffer(f"y{n}", value.dtype, CPU, Layout.of(size)),), Pointwise(ranges, value))
        for n, value in enumerate(values)
    ]
    outputs = tuple(TensorRef(f"y{n}") for n in range(len(values)))
    return Graph("moves", inputs, tuple(made), outputs)


@pytest.mark.parametrize(
    "value",
    [
        X,
        Const(2.5, F32),
        Load("x", [CheckedIndex(ROW, as_index(8)), B.expr], F32),
        Masked(Op("lt", [IndexValue(B.expr), Const(9, DType.i64)]), X, Const(0.0, F32)),
        Op("where", [Op("isnan", [X]), Const(0.0, F32), X]),
        Op("to", [X], DType.f64),
        Op("mul", [ROW, ROW]),
    ],
    ids=["copy", "fill", "gather", "part", "choice", "wider", "integers"],
)
def test_copies_choices_and_integers_are_moves(value):
    assert moved_points(schedule(graph(value))) == 128


@pytest.mark.parametrize(
    "value",
    [
        Op("add", [X, X]),
        Op("maximum", [X, X]),
        Op("exp", [X]),
        Op("to", [X], DType.f16),
        Op("to", [X], DType.i32),
        Op("to", [ROW], DType.f64),
        Op("lt", [Op("to", [ROW], DType.u64), Const(3, DType.u64)]),
        Op("where", [Op("lt", [X, X]), X, Op("sqrt", [X])]),
    ],
    ids=["sum", "larger", "exp", "half", "truncated", "long", "unsigned", "in-a-choice"],
)
def test_what_may_be_rounded_otherwise_or_torch_lacks_is_none(value):
    assert moved_points(schedule(graph(X, value))) is None


def test_a_reduction_is_none():
    made = graph(X)
    total = Buffer("total", F32, CPU, Layout.of([8]))
    body = Reduction((A,), (B,), ReductionKind.MAX, X)
    made = replace(
        made,
        definitions=(*made.definitions, Definition((total,), body)),
        outputs=(*made.outputs, TensorRef("total")),
    )
    assert moved_points(schedule(made)) is None


def test_open_sizes_are_none():
    n = Sym("n")
    rows = Var("i0", n.expr)
    value = Load("x", [rows.expr, B.expr], F32)
    made = graph(value, ranges=(rows, B), size=(n.expr, 16))
    assert moved_points(schedule(made)) is None


def test_every_launch_counts():
    made = schedule(graph(X, Op("to", [X], DType.f64)))
    launches = sum(type(step).__name__ == "Launch" for step in made.steps)
    assert moved_points(made) == 128 * launches
