"""Writes at computed places: every kind, element type and shape of loops, with several threads."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import CPU, both, buffer

from plait_cpp_codegen import build
from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    DType,
    Graph,
    Layout,
    Load,
    Op,
    Pointwise,
    Scatter,
    ScatterKind,
    TensorRef,
    Var,
    as_index,
    from_torch_dtype,
    interpret,
)
from plait_scheduler import (
    Launch,
    SchedulerOptions,
    load_python,
    memory_report,
    parse_program,
    print_program,
    render_python,
    schedule,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]
DTYPES += [torch.int32, torch.int8, torch.uint8, torch.bool]


def scatter_graph(x, places, source, axis, kind, *, compute=None, start=None, tag="") -> Graph:
    """`source` scattered along `axis` of `x`, or of what `start` computes of its elements.

    `places` has the shape of `source`, or one dimension, which is that axis.
    """
    given, index_name, source_name = (f"{tag}{name}" for name in "xis")
    named = ((given, x), (index_name, places), (source_name, source))
    inputs = tuple(buffer(name, tensor) for name, tensor in named)
    ranges = tuple(Var(f"s{n}", size) for n, size in enumerate(source.shape))
    points = [var.expr for var in ranges]
    chosen = Load(index_name, points if places.dim() == source.dim() else [points[axis]], DType.i64)
    index = list(points)
    index[axis] = CheckedIndex(chosen, Layout.of(x.shape).size[axis])
    dtype = from_torch_dtype(x.dtype)
    value = Load(source_name, points, dtype)
    value = value if compute is None else compute(value)
    made = Buffer(f"{tag}y", dtype, CPU, Layout.of(list(x.shape), list(x.stride())))
    definitions, target = [], given
    if start is not None:
        dims = tuple(Var(f"i{n}", size) for n, size in enumerate(x.shape))
        load = Load(given, [var.expr for var in dims], dtype)
        begin = Buffer(f"{tag}b", dtype, CPU, made.layout)
        definitions.append(Definition((begin,), Pointwise(dims, start(load))))
        target = f"{tag}b"
    body = Scatter(target, ranges, tuple(index), kind, value)
    definitions.append(Definition((made,), body))
    return Graph("g", inputs, tuple(definitions), (TensorRef(f"{tag}y"),))


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return (torch.randn(shape, generator=generator) * 3).to(dtype)


def agree(*cases: tuple) -> None:
    """Results in C++, which have to be those of Python and of a loop, bit for bit.

    Each case are the arguments of `scatter_graph`; one program carries out all of them.
    """
    graphs = [scatter_graph(*case, tag=f"g{n}_") for n, case in enumerate(cases)]
    inputs = [tensor for case in cases for tensor in case[:3]]
    graph = Graph(
        "g",
        tuple(buffer for graph in graphs for buffer in graph.inputs),
        tuple(definition for graph in graphs for definition in graph.definitions),
        tuple(out for graph in graphs for out in graph.outputs),
    )
    results = (*both(graph, inputs), interpret(graph, inputs))
    for case, actual, python, meant in zip(cases, *results, strict=True):
        about = str(case[3:])
        torch.testing.assert_close(
            actual, meant, rtol=0, atol=0, equal_nan=True, msg=lambda m, about=about: about + m
        )
        near = 0 if actual.dtype.itemsize > 2 or not actual.is_floating_point() else 5e-2
        torch.testing.assert_close(python, meant, rtol=near, atol=near, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sampled(3)
def test_every_kind_of_every_type(dtype):
    x, source = values(dtype, 4, 37), values(dtype, 9, 37)
    if dtype.is_floating_point:
        source[3, 5] = x[1, 7] = torch.nan
    places = torch.randint(-4, 4, (9, 37), generator=torch.Generator().manual_seed(1))
    rows = places[:, 0].contiguous()
    agree(*((x, where, source, 0, kind) for kind in ScatterKind for where in (places, rows)))


SHAPES = [(6,), (5, 70), (3, 4, 20), (70, 3, 2), (1, 1), (2, 0, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.sampled(3)
def test_every_shape_of_loops(shape, permuted):
    cases = []
    for axis in dict.fromkeys((0, len(shape) - 1)):
        x, long = values(torch.float32, *shape), list(shape)
        long[axis] = 0 if 0 in shape else 40
        source = values(torch.float32, *long)
        if permuted:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        for size in ((long[axis],), tuple(long)):
            generator = torch.Generator().manual_seed(2)
            places = torch.randint(max(shape[axis], 1), size, generator=generator)
            cases += [(x, places, source, axis, kind) for kind in list(ScatterKind)[:2]]
    agree(*cases)


@pytest.mark.parametrize("simplify", [False, True])
def test_scatters_at_places_that_are_not_affine(simplify):
    """One loop over a source, of which each point is a row and a column of the target."""
    source = values(torch.float32, 24)
    places = torch.randint(3, (24,), generator=torch.Generator().manual_seed(3))
    inputs = [torch.zeros(3, 4, 2), places, source]
    s = Var("s0", 24)
    chosen = CheckedIndex(Load("i", [s.expr], DType.i64), as_index(3))
    value = Load("s", [s.expr], DType.f32)
    body = Scatter("x", (s,), (chosen, s.expr // 2 % 4, s.expr % 2), ScatterKind.ADD, value)
    made = Buffer("y", DType.f32, CPU, Layout.of([3, 4, 2]))
    buffers = tuple(buffer(name, each) for name, each in zip("xis", inputs, strict=True))
    graph = Graph("g", buffers, (Definition((made,), body),), (TensorRef("y"),))
    found = build(schedule(graph, options=SchedulerOptions(simplify_loops=simplify)))
    assert found.fallback_reason is None
    torch.testing.assert_close(found(*inputs)[0], interpret(graph, inputs)[0])


def test_sums_of_floats_do_not_depend_on_threads():
    x, source = torch.zeros(50, 300), torch.randn(2000, 300)
    rows = torch.randint(50, (2000,))
    executable = build(schedule(scatter_graph(x, rows, source, 0, ScatterKind.ADD)))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3, 8):
            torch.set_num_threads(threads)
            found.append(executable(x, rows, source)[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], each) for each in found)
    expected = torch.zeros(50, 300)
    for row, values_ in zip(rows.tolist(), source, strict=True):
        expected[row] += values_
    assert torch.equal(found[0], expected)


def test_what_is_scattered_is_computed_in_the_same_loops():
    x, source, rows = torch.randn(40, 30), torch.randn(200, 30), torch.randint(40, (200,))
    graph = scatter_graph(
        *(x, rows, source, 0, ScatterKind.ADD),
        compute=lambda v: Op("exp", [Op("mul", [v, Const(0.5, DType.f32)])]),
        start=lambda v: Op("neg", [v]),
    )
    program = schedule(graph)
    assert parse_program(print_program(program)) == program
    assert sum(isinstance(step, Launch) for step in program.steps) == 2  # the start, the scatter
    assert memory_report(program).peak.as_int() == x.numel() * 4
    (found,) = build(program)(x, rows, source)
    expected = (-x).index_add(0, rows, (source * 0.5).exp())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(load_python(render_python(program))([x, rows, source])[0], expected)


def test_what_else_reads_the_start_sees_it_unchanged():
    x, source, rows = torch.randn(40, 30), torch.randn(200, 30), torch.randint(40, (200,))
    graph = scatter_graph(*(x, rows, source, 0, ScatterKind.ADD), start=lambda v: Op("exp", [v]))
    graph = Graph(graph.name, graph.inputs, graph.definitions, (TensorRef("y"), TensorRef("b")))
    (found, start), python = both(graph, [x, rows, source])
    torch.testing.assert_close(start, x.exp())
    torch.testing.assert_close(found, x.exp().index_add(0, rows, source))
    for a, b in zip((found, start), python, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("wrong", [40, -41])
def test_a_place_out_of_bounds_is_an_error_and_changes_no_input(wrong):
    x, source, rows = torch.randn(40, 30), torch.randn(200, 30), torch.randint(40, (200,))
    before = x.clone()
    program = schedule(scatter_graph(x, rows, source, 0, ScatterKind.ADD))
    rows[100] = wrong
    with pytest.raises(IndexError):
        build(program)(x, rows, source)
    with pytest.raises(IndexError):
        load_python(render_python(program))([x, rows, source])
    assert torch.equal(x, before)
