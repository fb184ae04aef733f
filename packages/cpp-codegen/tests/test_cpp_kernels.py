"""Loops of every shape: rows, columns, tails, strides, gathers, masks."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
from cpp_graphs import CPU, both, buffer, pointwise_graph, reduction_graph

from plait_cpp_codegen import build
from plait_cpp_codegen.kernels.plan import fitting_lanes
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
    ReductionKind,
    Sym,
    TensorRef,
    Var,
    as_index,
    from_torch_dtype,
)
from plait_scheduler import schedule

DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool),
]
KINDS = list(ReductionKind)[:4] + list(ReductionKind)[6:]
SHAPES = [(1,), (7,), (16, 33), (3, 5, 64), (2, 1000), (1000, 2), (4, 3, 2, 5), (0, 4), (1, 1)]
SHAPES += [(9, 24), (30, 7), (5, 28)]  # columns that whole vectors do not cover


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axes", ["first", "last", "all"])
@pytest.mark.sampled(3)
def test_reductions(shape, axes):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator)
    chosen = {"first": [0], "last": [len(shape) - 1], "all": list(range(len(shape)))}[axes]
    kinds = [ReductionKind.SUM, ReductionKind.PROD] if 0 in shape else KINDS
    actual, expected = both(reduction_graph(x, chosen, kinds), [x])
    for kind, a, e in zip(kinds, actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5, msg=f"{kind} {a} {e}")


@pytest.mark.parametrize(
    ("columns", "lanes"), [(4, 4), (8, 8), (12, 4), (20, 16), (24, 8), (31, 8), (3, 16), (48, 16)]
)
def test_vectors_are_as_wide_as_leaves_the_fewest_steps_of_a_row(columns, lanes):
    """Of 8 of a group's 64 channels beside each other one vector, not 8 points."""
    x = torch.randn(40, 3 * columns)[:, :columns]
    graph = reduction_graph(x, [0, 1], [ReductionKind.SUM, ReductionKind.MAX])
    (actual, expected) = both(graph, [x])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-4)
    row, plain = Var("r0", columns), Var("r0", Sym("s").expr)
    assert fitting_lanes(row, 16) == lanes
    assert fitting_lanes(plain, 16) == 16


@pytest.mark.parametrize("axes", [[], [0, 1], [1, 2], [0, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (2, 3, 0), (1, 0, 0), (0, 0, 0)], ids=str)
@pytest.mark.sampled(3)
def test_merged_loops_without_points(shape, axes):
    """Loops over nothing leave what a reduction starts with, and divide by no extent."""
    for x in (torch.randn(shape), torch.randn(shape).transpose(0, 2)):
        graph = pointwise_graph([x], {"y": lambda a: Op("exp", [a])})
        if axes:
            graph = reduction_graph(x, axes, [ReductionKind.SUM, ReductionKind.PROD])
        actual, expected = both(graph, [x])
        for a, e in zip(actual, expected, strict=True):
            assert torch.equal(a, e)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float64, torch.bool], ids=str)
def test_reductions_of_other_types(dtype):
    x = torch.randint(0, 2, (9, 37)).to(dtype)
    kinds = [ReductionKind.ANY, ReductionKind.ALL] if dtype is torch.bool else KINDS
    for axes in ([0], [1]):
        actual, expected = both(reduction_graph(x, axes, kinds), [x])
        for a, e in zip(actual, expected, strict=True):
            assert torch.equal(a, e)


POSITIONED = [*DTYPES[:4], torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("shape", [(3, 5), (7, 16), (4, 65), (33, 130), (130, 33)], ids=str)
@pytest.mark.parametrize("dtype", POSITIONED, ids=str)
@pytest.mark.sampled(4)
def test_places_of_extremes_are_the_first_ones(dtype, shape):
    """Among ties, NaN, infinities, and where all are the least number there is."""
    low, high = (0, 4) if dtype is torch.uint8 else (-3, 4)
    inputs = [torch.randint(low, high, shape).to(dtype)]
    if dtype.is_floating_point:
        inputs += [torch.randn(shape).to(dtype), torch.full(shape, -torch.inf, dtype=dtype)]
        inputs[1][torch.rand(shape) < 0.05] = torch.nan
        inputs[1][torch.rand(shape) < 0.05] = torch.inf
    else:
        inputs.append(torch.full(shape, torch.iinfo(dtype).min, dtype=dtype))
    kinds = [ReductionKind.ARGMAX, ReductionKind.ARGMIN]
    for x in inputs:
        for axes in ([0], [1], [0, 1]):
            actual, expected = both(reduction_graph(x, axes, kinds), [x])
            for a, e in zip(actual, expected, strict=True):
                assert torch.equal(a, e)


def test_nan_wins_reductions():
    x = torch.randn(5, 40)
    x[1, 7] = x[3, 39] = float("nan")
    actual, expected = both(reduction_graph(x, [1], KINDS), [x])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, equal_nan=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(33, 65).T,
        lambda: torch.randn(40, 40)[::2, 1::3],
        lambda: torch.randn(5, 1).expand(5, 17),
        lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
        lambda: torch.randn(()),
        lambda: torch.randn(0, 3),
        lambda: torch.randn(100003),
    ],
    ids=["transposed", "sliced", "expanded", "channels_last", "scalar", "empty", "long"],
)
def test_strided_inputs(make):
    x = make()
    graph = pointwise_graph([x], {"y": lambda a: Op("exp", [Op("neg", [Op("abs", [a])])])})
    actual, _ = both(graph, [x])
    torch.testing.assert_close(actual[0], torch.exp(-x.abs()).contiguous(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_second_element_and_nothing_behind_them(dtype):
    """The page behind the elements can not be read."""
    libc, page, unreadable = ctypes.CDLL(None), mmap.PAGESIZE, 0
    memory = mmap.mmap(-1, 2 * page)
    view = ctypes.c_char.from_buffer(memory)
    behind = ctypes.c_void_p(ctypes.addressof(view) + page)
    assert libc.mprotect(behind, ctypes.c_size_t(page), unreadable) == 0
    whole = torch.frombuffer(memory, dtype=dtype, count=page // dtype.itemsize)
    for first in (0, 1):
        x = whole[first::2]
        if dtype is torch.bool:
            x.copy_(torch.arange(x.numel()) % 3 == 0)
        else:
            x.copy_(torch.arange(x.numel()) % 100)
        actual, _ = both(pointwise_graph([x], {"y": lambda a: a}), [x])
        assert torch.equal(actual[0], x)
    del view


def embedding_graph(weight: torch.Tensor, indices: torch.Tensor) -> Graph:
    w, i = buffer("w", weight), buffer("i", indices)
    row, column = Var("i0", indices.shape[0]), Var("i1", weight.shape[1])
    chosen = CheckedIndex(Load("i", [row.expr], DType.i64), w.layout.size[0])
    value = Load("w", [chosen, column.expr], DType.f32)
    out = Buffer("y", DType.f32, CPU, Layout.of([row.extent, column.extent]))
    body = Pointwise((row, column), value)
    return Graph("test", (w, i), (Definition((out,), body),), (TensorRef("y"),))


def test_gather_and_bounds():
    weight, indices = torch.randn(10, 20), torch.tensor([0, 9, 3, -1])
    graph = embedding_graph(weight, indices)
    actual, _ = both(graph, [weight, indices])
    assert torch.equal(actual[0], weight[indices])
    executable = build(schedule(graph))
    for wrong in (10, -11, 2**40):
        with pytest.raises(IndexError, match="out of range"):
            executable(weight, torch.tensor([0, wrong, 3, 1]))
    assert torch.equal(executable(weight, indices)[0], weight[indices])


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.bfloat16,
        torch.bool,
    ],
    ids=str,
)
def test_gather_of_neighbouring_elements(dtype):
    """Each lane has an index of its own; wrong ones are found in any lane."""
    x = torch.randint(0, 2, (5, 40)).to(dtype)
    indices = torch.randint(-40, 40, (5, 37))
    source, at = buffer("x", x), buffer("i", indices)
    row, column = Var("i0", 5), Var("i1", 37)
    chosen = CheckedIndex(Load("i", [row.expr, column.expr], DType.i64), as_index(40))
    value = Load("x", [row.expr, chosen], source.dtype)
    out = Buffer("y", source.dtype, CPU, Layout.of([5, 37]))
    definition = Definition((out,), Pointwise((row, column), value))
    graph = Graph("test", (source, at), (definition,), (TensorRef("y"),))
    actual, _ = both(graph, [x, indices])
    assert torch.equal(actual[0], x.gather(1, indices % 40))
    executable = build(schedule(graph))
    for lane in (0, 7, 36):
        wrong = indices.clone()
        wrong[3, lane] = 40
        with pytest.raises(IndexError, match="out of range"):
            executable(x, wrong)


def test_masked_loads_stay_in_bounds():
    x = torch.randn(3, 5)
    source = buffer("x", x)
    row, column = Var("i0", 3), Var("i1", 9)
    place = column.expr - 2
    at_least = Op("ge", [IndexValue(place), Const(0, DType.i64)])
    below = Op("lt", [IndexValue(place), Const(5, DType.i64)])
    inside = Op("logical_and", [at_least, below])
    value = Masked(inside, Load("x", [row.expr, place], DType.f32), Const(7.0, DType.f32))
    out = Buffer("y", DType.f32, CPU, Layout.of([3, 9]))
    definition = Definition((out,), Pointwise((row, column), value))
    actual, _ = both(Graph("test", (source,), (definition,), (TensorRef("y"),)), [x])
    assert torch.equal(actual[0], torch.nn.functional.pad(x, (2, 2), value=7.0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_what_does_not_fit_in_a_byte_wraps_in_single_lanes_too(dtype):
    x = torch.linspace(-700, 700, 77)
    narrow = from_torch_dtype(dtype)

    def through(kind):
        return lambda a: Op("to", [Op("to", [a], narrow)], kind)

    graph = pointwise_graph([x], {"y": through(DType.f32), "z": through(DType.f64)})
    for found in build(schedule(graph))(x):
        assert torch.equal(found, x.to(torch.int32).to(dtype).to(found.dtype))
