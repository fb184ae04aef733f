"""Reductions of columns that read their rows in the order of memory."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import CPU, both, buffer, pointwise_graph, reduction_graph

from plait_cpp_codegen import CppOptions, build
from plait_cpp_codegen.kernels import render_kernel
from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    DType,
    Graph,
    Layout,
    Load,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Var,
)
from plait_scheduler import schedule

KINDS = (ReductionKind.SUM, ReductionKind.MAX, ReductionKind.MIN)


def is_streamed(graph: Graph) -> bool:
    return any("kept_" in render_kernel(each, 64).body for each in schedule(graph).kernels)


@pytest.mark.parametrize("rows", [2, 8, 21, 300])
@pytest.mark.parametrize("columns", [17, 24, 65, 700, 5000])
@pytest.mark.sampled(3)
def test_columns(rows, columns):
    """Blocks of columns that a thread has, their last vectors, and rows that are left."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns))
    graph = reduction_graph(x, [0], KINDS)
    assert is_streamed(graph)
    (total, most, least), _ = both(graph, [x])
    torch.testing.assert_close(total.double(), x.double().sum(0), rtol=1e-5, atol=1e-4)
    assert torch.equal(most, x.amax(0))
    assert torch.equal(least, x.amin(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int8, torch.bfloat16], ids=str)
def test_types(dtype):
    x = torch.randint(-9, 9, (30, 150)).to(dtype)
    for actual, expected in zip(*both(reduction_graph(x, [0], KINDS), [x]), strict=True):
        assert torch.equal(actual, expected)
    mask = x > 7
    graph = reduction_graph(mask, [0], [ReductionKind.ANY, ReductionKind.ALL])
    assert is_streamed(graph)
    (some, every), _ = both(graph, [mask])
    assert torch.equal(some, mask.any(0))
    assert torch.equal(every, mask.all(0))


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extremes_with_nan_and_infinity(vector_bytes, dtype):
    """NaN wins wherever it stands, in vectors and in what they leave."""
    x = torch.randn(40, 83, dtype=dtype)
    x[0, ::5] = x[39, 1::5] = x[17, 2::5] = float("nan")
    x[:, 3::5] = torch.tensor([float("inf"), float("-inf")], dtype=dtype).repeat(20)[:, None]
    for axis in (0, 1):
        graph = reduction_graph(x, [axis], KINDS[1:])
        most, least = build(schedule(graph), options=CppOptions(vector_bytes=vector_bytes))(x)
        assert torch.equal(most.nan_to_num(7.0), x.amax(axis).nan_to_num(7.0))
        assert torch.equal(least.nan_to_num(7.0), x.amin(axis).nan_to_num(7.0))
        assert torch.equal(most.isnan(), x.isnan().any(axis))
    y = x.flip(0).contiguous()
    graph = pointwise_graph(
        [x, y],
        {name: lambda a, b, op=name: Op(op, [a, b]) for name in ("maximum", "minimum")},
    )
    made = build(schedule(graph), options=CppOptions(vector_bytes=vector_bytes))(x, y)
    for actual, expected in zip(made, (torch.maximum(x, y), torch.minimum(x, y)), strict=True):
        assert torch.equal(actual.isnan(), expected.isnan())
        assert torch.equal(actual.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("rows", [6, 3000])
def test_columns_less_their_mean(rows):
    """Rows are read again once their mean is known, in blocks that the cache holds."""
    columns = 333
    x = torch.randn(rows, columns)
    i, j, r = Var("i0", rows), Var("i1", columns), Var("r0", rows)
    total = Reduction((j,), (r,), ReductionKind.SUM, Load("x", [r.expr, j.expr], DType.f32))
    mean = Op("mul", [Load("t", [j.expr], DType.f32), Const(1 / rows, DType.f32)])
    less = Op("sub", [Load("x", [i.expr, j.expr], DType.f32), mean])
    definitions = [
        Definition((Buffer("t", DType.f32, CPU, Layout.of([j.extent])),), total),
        Definition(
            (Buffer("y", DType.f32, CPU, Layout.of([rows, columns])),), Pointwise((i, j), less)
        ),
    ]
    graph = Graph("g", (buffer("x", x),), definitions, [TensorRef("y")])
    (actual,), _ = both(graph, [x])
    torch.testing.assert_close(actual, x - x.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 5, 24), (3, 9, 9, 100)], ids=str)
def test_pixels_of_images_with_channels_last(shape):
    x = torch.randn(shape)
    graph = reduction_graph(x.transpose(0, 1), [0, 1, 2], KINDS)
    assert is_streamed(graph)
    (total, most, _), _ = both(graph, [x.transpose(0, 1)])
    torch.testing.assert_close(total, x.sum((0, 1, 2)), rtol=1e-4, atol=1e-4)
    assert torch.equal(most, x.amax((0, 1, 2)))


def test_columns_of_other_layouts_stay():
    """Where neighbouring results are not neighbours in memory, or are one vector."""
    assert not is_streamed(reduction_graph(torch.randn(40, 600).t(), [0], KINDS))
    assert not is_streamed(reduction_graph(torch.randn(40, 1200)[:, ::2], [0], KINDS))
    assert not is_streamed(reduction_graph(torch.randn(400, 16), [0], KINDS))
