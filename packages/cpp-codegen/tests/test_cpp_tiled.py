"""Loops that read matrices along their columns, in tiles."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import CPU, both, buffer, pointwise_graph

from plait_cpp_codegen import CppOptions, build
from plait_cpp_codegen.kernels import render_kernel
from plait_ir_lowering import (
    Buffer,
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
    Sym,
    TensorRef,
    Value,
    Var,
)
from plait_scheduler import schedule

SHAPES = [(8, 8), (20, 300), (33, 17), (64, 64), (65, 130), (200, 72), (1000, 8)]
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16]
DTYPES += [torch.int8, torch.bool]


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randint(-100, 100, shape, generator=generator)
    return (x > 0) if dtype is torch.bool else x.to(dtype)


def is_tiled(graph: Graph) -> bool:
    return any("tile0" in render_kernel(each, 64).body for each in schedule(graph).kernels)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sampled(3)
def test_transposed_copies(dtype):
    """Whole tiles, what is left of them, and fewer points than a vector has."""
    for shape in SHAPES:
        x = numbers(shape, dtype)
        graph = pointwise_graph([x.t()], {"y": lambda a: a})
        assert is_tiled(graph)
        (actual,), _ = both(graph, [x.t()])
        assert torch.equal(actual, x.t()), shape


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_vectors_of_all_widths(vector_bytes):
    for dtype in (torch.float32, torch.float64, torch.uint8):
        x = numbers((77, 140), dtype)
        program = schedule(pointwise_graph([x.t()], {"y": lambda a: a}))
        executable = build(program, options=CppOptions(vector_bytes=vector_bytes))
        assert executable.fallback_reason is None, executable.fallback_reason
        assert torch.equal(executable(x.t())[0], x.t())


@pytest.mark.parametrize("shape", [(3, 70, 90), (2, 64, 20), (5, 24, 19)], ids=str)
def test_images_to_channels_last_and_back(shape):
    x = numbers(shape, torch.float32)
    for source in (x.transpose(1, 2), x.transpose(1, 2).contiguous().transpose(1, 2)):
        graph = pointwise_graph([source], {"y": lambda a: Op("exp", [Op("sin", [a])])})
        assert is_tiled(graph)
        (actual,), _ = both(graph, [source])
        torch.testing.assert_close(actual, source.sin().exp())


def test_several_matrices_of_several_types():
    x, y, z = torch.randn(90, 130), torch.randn(90, 130).double(), torch.randn(130, 90)
    graph = pointwise_graph(
        [x.t(), y.t(), z],
        {"s": lambda a, b, c: Op("add", [Op("to", [b], DType.f32), Op("mul", [a, c])])},
    )
    assert is_tiled(graph)
    (actual,), _ = both(graph, [x.t(), y.t(), z])
    torch.testing.assert_close(actual, y.t().float() + x.t() * z)


def test_loads_that_not_all_points_need():
    """What is read below the diagonal alone is not read in tiles; what all points read is."""
    size = 100
    x, y = torch.randn(size, size - 40), torch.randn(size, size)
    i, j = Var("i0", size), Var("i1", size)
    inside = Op("lt", [IndexValue(i.expr), Const(size - 40, DType.i64)])
    some = Masked(inside, Load("x", [j.expr, i.expr], DType.f32), Const(2.0, DType.f32))
    value: Value = Op("add", [some, Load("y", [j.expr, i.expr], DType.f32)])
    made = Buffer("z", DType.f32, CPU, Layout.of([size, size]))
    definition = Definition((made,), Pointwise((i, j), value))
    sources = (buffer("x", x), buffer("y", y))
    (actual,), _ = both(Graph("g", sources, [definition], [TensorRef("z")]), [x, y])
    expected = torch.full((size, size), 2.0)
    expected[: size - 40] = x.t()
    assert torch.equal(actual, expected + y.t())


def test_open_sizes():
    a, b, n = Sym("s0", 2).expr, Sym("s1", 2).expr, Sym("s2", 2).expr
    k, i, j = Var("i0", n), Var("i1", a), Var("i2", b)
    source = Buffer("x", DType.f32, CPU, Layout.of([n, b, a]))
    value = Op("neg", [Load("x", [k.expr, j.expr, i.expr], DType.f32)])
    made = Buffer("y", DType.f32, CPU, Layout.of([n, a, b]))
    definition = Definition((made,), Pointwise((k, i, j), value))
    graph = Graph("g", (source,), [definition], [TensorRef("y")])
    assert is_tiled(graph)
    executable = build(schedule(graph))
    assert executable.fallback_reason is None, executable.fallback_reason
    for shape in ((2, 2, 2), (3, 5, 70), (2, 128, 64), (4, 100, 33)):
        x = torch.randn(shape)
        assert torch.equal(executable(x)[0], -x.transpose(1, 2))


def test_what_lies_near_is_gathered():
    """Few rows, or elements that share a line of the cache."""
    assert not is_tiled(pointwise_graph([torch.randn(900, 4).t()], {"y": lambda a: a}))
    assert not is_tiled(pointwise_graph([torch.randn(50, 90)[:, ::2]], {"y": lambda a: a}))


@pytest.mark.parametrize(("rows", "columns"), [(1100, 1030), (30, 60_000)])
def test_large_matrices_ask_for_the_next_tile(rows, columns):
    x, y = numbers((columns, rows), torch.float32), numbers((rows, columns), torch.float32)
    graph = pointwise_graph([x.t(), y], {"z": lambda a, b: Op("add", [a, b])})
    (kernel,) = schedule(graph).kernels
    assert render_kernel(kernel, 64).body.count("__builtin_prefetch(") == 2
    (z,) = build(schedule(graph))(x.t(), y)
    assert torch.equal(z, x.t() + y)


def test_matrices_in_the_second_cache_are_near():
    x = numbers((1000, 1000), torch.float32)
    (kernel,) = schedule(pointwise_graph([x.t()], {"y": lambda a: a})).kernels
    assert "prefetch" not in render_kernel(kernel, 64).body
