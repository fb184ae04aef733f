"""Values that rows share, which loops look up."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import CPU, both, buffer

from plait_cpp_codegen import build
from plait_cpp_codegen.kernels import render_kernel
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
)
from plait_scheduler import schedule


def graph_of(sources: list[Buffer], dims: tuple[Var, ...], value: Value) -> Graph:
    layout = Layout.of([dim.extent for dim in dims])
    made = Buffer("y", value.dtype, CPU, layout)
    return Graph(
        "g", tuple(sources), [Definition((made,), Pointwise(dims, value))], [TensorRef("y")]
    )


def text_of(graph: Graph) -> str:
    (kernel,) = schedule(graph).kernels
    return render_kernel(kernel, 64).body


@pytest.mark.parametrize("columns", [5, 40, 5000])
def test_indices_of_all_rows(columns):
    x, index = torch.randn(9, 70), torch.randint(-70, 70, (columns,))
    i, j = Var("i0", 9), Var("i1", columns)
    chosen = CheckedIndex(Load("index", [j.expr], DType.i64), as_index(70))
    value = Load("x", [i.expr, chosen], DType.f32)
    graph = graph_of([buffer("x", x), buffer("index", index)], (i, j), value)
    assert ("table0" in text_of(graph)) is (columns >= 40)  # few columns: vectors along rows
    (actual,), _ = both(graph, [x, index])
    assert torch.equal(actual, x[:, index])
    index[columns - 1] = 70
    with pytest.raises(IndexError):
        build(schedule(graph))(x, index)


@pytest.mark.parametrize("shape", [(3, 8, 33), (1, 5, 16), (7, 4, 1500)], ids=str)
def test_places_of_all_channels(shape):
    """Tables of one image after another; the loop over channels runs inside of that over them."""
    images, channels, columns = shape
    x, grid = torch.randn(shape), torch.rand(images, columns) * (columns - 1)
    n, c, w = Var("i0", images), Var("i1", channels), Var("i2", columns)
    asked = Load("grid", [n.expr, w.expr], DType.f32)
    low = Op(
        "minimum", [Op("to", [Op("floor", [asked])], DType.i32), Const(columns - 1, DType.i32)]
    )
    share = Op("sub", [asked, Op("to", [low], DType.f32)])
    value = Load("x", [n.expr, c.expr, Op("to", [low], DType.i64)], DType.f32)
    value = Op("mul", [value, Op("square", [Op("add", [share, share])])])
    graph = graph_of([buffer("x", x), buffer("grid", grid)], (n, c, w), value)
    (actual,), _ = both(graph, [x, grid])
    near = grid.floor().long()
    expected = x.gather(2, near[:, None].expand(shape)) * (2 * (grid - near))[:, None] ** 2
    torch.testing.assert_close(actual, expected)


def test_tables_serve_rows_whose_number_is_open():
    """Two open sizes make up the rows: divided by as one number."""
    a, b, k = Sym("s0", 2).expr, Sym("s1", 2).expr, Sym("s2", 2).expr
    i, j, w = Var("i0", a), Var("i1", b), Var("i2", k)
    chosen = CheckedIndex(Load("index", [w.expr], DType.i64), as_index(70))
    value = Op("neg", [Load("x", [i.expr, j.expr, chosen], DType.f32)])
    source = Buffer("x", DType.f32, CPU, Layout.of([a, b, 70]))
    places = Buffer("index", DType.i64, CPU, Layout.of([k]))
    graph = graph_of([source, places], (i, j, w), value)
    assert "table0" in text_of(graph)
    executable = build(schedule(graph))
    assert executable.fallback_reason is None, executable.fallback_reason
    for rows, columns in (((3, 5), 33), ((2, 2), 4500), ((7, 4), 9)):
        x, index = torch.randn(*rows, 70), torch.randint(0, 70, (columns,))
        assert torch.equal(executable(x, index)[0], -x[..., index])


def test_rows_that_differ_have_no_table():
    x, index = torch.randn(9, 70), torch.randint(0, 70, (9, 40))
    i, j = Var("i0", 9), Var("i1", 40)
    chosen = CheckedIndex(Load("index", [i.expr, j.expr], DType.i64), as_index(70))
    value = Load("x", [i.expr, chosen], DType.f32)
    assert "table0" not in text_of(
        graph_of([buffer("x", x), buffer("index", index)], (i, j), value)
    )


def test_what_rows_share_is_computed_in_front_of_them():
    """A value of positions that is the same in all columns is computed once for a row."""
    x = torch.randn(6, 50)
    i, j = Var("i0", 6), Var("i1", 50)
    row = Op("sin", [Op("to", [IndexValue(i.expr)], DType.f32)])
    value = Op("mul", [Load("x", [i.expr, j.expr], DType.f32), row])
    graph = graph_of([buffer("x", x)], (i, j), value)
    text = text_of(graph)
    assert text.index("v_sin") < text.index("auto point")
    (actual,), _ = both(graph, [x])
    torch.testing.assert_close(actual, x * torch.arange(6.0).sin()[:, None])
