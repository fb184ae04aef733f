"""Writes at computed places: against eager, as text, and what the verifier refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lowering_oracle import check, record

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    Device,
    DType,
    Graph,
    IndexValue,
    Layout,
    Load,
    LoopIRError,
    Scatter,
    ScatterKind,
    TensorRef,
    Var,
    external_ops,
    interpret,
    lower,
    verify,
)

aten = torch.ops.aten
X = torch.arange(24.0).reshape(4, 6)
ROWS = torch.tensor([2, 0, 2, 3, 2])
PLACES = torch.tensor([[3, 0, 1], [3, 2, 1], [0, 0, 0], [1, 3, 3]])
S = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
R = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
ONE = torch.tensor(2.5)
MASK = X % 5 < 2

WRITES = {
    "scatter_add": lambda: (lambda x, i, s: x.scatter_add(0, i, s), X, PLACES, S),
    "scatter_add, last axis": lambda: (lambda x, i, s: x.scatter_add(-1, i, s), X, PLACES, S),
    "scatter_add, columns": lambda: (
        lambda x, i, s: x.scatter_add(0, i, s),
        *(X.t().contiguous().t(), PLACES, S),
    ),
    "scatter_add, a number": lambda: (
        lambda x, i, s: x.scatter_add(0, i, s),
        *(ONE, torch.tensor([0]), torch.ones(1)),
    ),
    "scatter_add, nothing": lambda: (
        lambda x, i, s: x.scatter_add(0, i, s),
        *(X, PLACES[:0], S[:0]),
    ),
    "scatter": lambda: (lambda x, i, s: x.scatter(0, i, s), X, PLACES, S),
    "scatter, a value": lambda: (lambda x, i: x.scatter(1, i, 2.5), X, PLACES),
    "scatter, adding": lambda: (
        lambda x, i, s: aten.scatter.reduce(x, 0, i, s, reduce="add"),
        *(X, PLACES, S),
    ),
    "scatter, multiplying": lambda: (
        lambda x, i: aten.scatter.value_reduce(x, 0, i, 3, reduce="multiply"),
        *(X, PLACES),
    ),
    "index_put": lambda: (lambda x, i, s: aten.index_put(x, [i], s), X, ROWS - 4, R),
    "index_put, a column": lambda: (
        lambda x, i, s: aten.index_put(x, [None, i], s),
        *(X, ROWS, torch.tensor(7.0)),
    ),
    "index_put, adding": lambda: (lambda x, i, s: aten.index_put(x, [i], s, True), X, ROWS, R),
    "index_put, two indices": lambda: (
        lambda x, i, j, s: aten.index_put(x, [i, j], s, True),
        *(X, ROWS[:, None], ROWS[None, :3], torch.randn(5, 3)),
    ),
    "index_put, apart": lambda: (
        lambda x, i, j, s: aten.index_put(x, [i, None, j], s, True),
        *(torch.randn(4, 3, 5), ROWS, ROWS + 1, torch.randn(5, 3)),
    ),
    "index_put, a mask": lambda: (lambda x, m, s: aten.index_put(x, [m], s), X, MASK, ONE),
    "index_put, a mask, adding": lambda: (
        lambda x, m, s: aten.index_put(x, [m], s, True),
        *(X, MASK[:, 0], ONE),
    ),
    "index_put, rows of a mask": lambda: (
        lambda x, m, s: aten.index_put(x, [m], s, True),
        *(X, MASK[:, 0], R[0]),
    ),
    "index_put, columns of a mask": lambda: (
        lambda x, m, s: aten.index_put(x, [None, m], s),
        *(X, MASK[0], R[:4, :1]),
    ),
    "index_add": lambda: (lambda x, i, s: x.index_add(0, i, s, alpha=2), X, ROWS, R),
    "index_add, a number": lambda: (
        lambda x, i, s: x.index_add(0, i, s),
        *(ONE, torch.tensor(0), torch.tensor(1.0)),
    ),
    "index_copy": lambda: (lambda x, i, s: x.index_copy(0, i, s), X, ROWS, R),
    "index_fill": lambda: (lambda x, i: x.index_fill(1, i, -1), X, ROWS - 4),
    "index_fill, a tensor": lambda: (lambda x, i, n: x.index_fill(0, i, n), X, ROWS, ONE),
    "put": lambda: (lambda x, i, s: aten.put(x, i, s), X, ROWS * 5 - 24, R[:, 0].contiguous()),
    "put, adding": lambda: (
        lambda x, i, s: aten.put(x, i, s, True),
        *(X[:, None], PLACES * 7, S),
    ),
    "take": lambda: (lambda x, i: aten.take(x, i), X, PLACES * 7 - 10),
    "masked_scatter": lambda: (
        lambda x, m, s: aten.masked_scatter(x, m, s),
        *(X, MASK, R.t().contiguous().t()),
    ),
    "masked_scatter, broadcast": lambda: (
        lambda x, m, s: aten.masked_scatter(x, m, s),
        *(X[:, None], MASK[0], R),
    ),
    "embedding backward": lambda: (
        lambda g, i: aten.embedding_dense_backward(g, i, 7, 2, True),
        *(R, ROWS),
    ),
    "unfold backward": lambda: (
        lambda g: aten.unfold_backward(g, [4, 9], 1, 3, 2),
        torch.randn(4, 4, 3),
    ),
    "max_pool2d backward": lambda: (
        lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, [3], [1], [1], [1], False, i),
        *(torch.randn(2, 4, 6), torch.empty(2, 4, 6), torch.randint(24, (2, 4, 6))),
    ),
    "max_unpool2d": lambda: (
        lambda x, i: aten.max_unpool2d(x, i, [4, 5]),
        *(torch.randn(1, 2, 2, 2), torch.tensor([0, 3, 19, 7, 2, 1, 6, 5]).view(1, 2, 2, 2)),
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_at_computed_places(name):
    function, *inputs = WRITES[name]()
    assert not external_ops(check(function, *inputs))


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bfloat16], ids=str)
def test_combining_at_computed_places(reduce, include_self, dtype):
    x, source = X.to(dtype), (S * 5).to(dtype)
    graph = check(
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self),
        *(x, PLACES, source),
    )
    assert not external_ops(graph)
    if reduce != "sum":
        check(
            lambda x, i, s: x.index_reduce(0, i, s, reduce, include_self=include_self),
            *(x, ROWS, (R * 5).to(dtype)),
        )


@pytest.mark.parametrize("wrong", [[0, 4], [0, -1], [-5, 0]], ids=str)
def test_places_out_of_bounds_are_errors(wrong):
    places = torch.tensor(wrong)
    for function in (
        lambda x, i: x.scatter(0, i[:, None], 1.0),
        lambda x, i: x.index_add(0, i, x[:2]),
        lambda x, i: x.index_copy(0, i, x[:2]),
    ):
        graph = lower(record(function, [X, ROWS[:2]]))
        with pytest.raises(IndexError):
            interpret(graph, [X, places])


def _graph(**changes: object) -> Graph:
    cpu = Device("cpu")
    x = Buffer("x", DType.f32, cpu, Layout.of([4, 6]))
    i = Buffer("i", DType.i64, cpu, Layout.of([5]))
    n, c = Var("n", 5), Var("c", 6)
    row = Load("i", [n.expr], DType.i64)
    body = Scatter("x", (n, c), (row, c.expr), ScatterKind.ADD, Const(1.0, DType.f32))
    made = Buffer("y", DType.f32, cpu, Layout.of([4, 6]))
    if "made" in changes:
        made = replace(made, **changes.pop("made"))  # type: ignore[arg-type]  # for the test
    definition = Definition((made,), replace(body, **changes))
    return Graph("g", (x, i), (definition,), (TensorRef("y"),))


N, C = Var("n", 5), Var("c", 6)
BROKEN = {
    "is used before it is defined": {"target": "z"},
    "does not lie in memory": {"made": {"layout": Layout.of([4, 6], [1, 4])}},
    "does not lie in memory as x": {"made": {"dtype": DType.f64}},
    "a f64 value for a f32 buffer": {"value": Const(1.0, DType.f64)},
    "has 2 dimensions": {"index": (C.expr,)},
    "outside of its 6 elements": {"index": (IndexValue(N.expr), C.expr + 1)},
    "a f32 value for a i64 buffer": {"index": (Const(1.0, DType.f32), C.expr)},
    "does not run here": {"ranges": (N, Var("d", 6))},
    "two variables have one name": {"ranges": (C, C)},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_broken_scatters_are_refused(reason):
    verify(_graph())
    with pytest.raises(LoopIRError, match=reason):
        verify(_graph(**BROKEN[reason]))


def test_only_elements_that_a_mask_shows_are_looked_for():
    x, mask = torch.randn(3, 4), torch.arange(12).reshape(3, 4) % 5 == 2
    graph = check(lambda x, m, s: x.masked_scatter(m, s), x, mask, torch.randn(3))
    assert not external_ops(graph)
    with pytest.raises(IndexError):
        interpret(graph, [x, ~mask, torch.randn(3)])
