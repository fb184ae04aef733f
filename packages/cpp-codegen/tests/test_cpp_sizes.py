"""Kernels that differ in sizes alone are one function, which is given the sizes."""

from __future__ import annotations

import re

import pytest
import torch
from cpp_graphs import CPU, buffer

from plait_cpp_codegen import build, render
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
from plait_scheduler import SchedulerOptions, schedule


def row_sums(inputs):
    """The sum of each row's squares, of each input."""
    definitions, outputs = [], []
    for number, tensor in enumerate(inputs):
        row, column = (Var(name, size) for name, size in zip("ij", tensor.shape, strict=True))
        given = Load(f"x{number}", [row.expr, column.expr], DType.f32)
        out = Buffer(f"y{number}", DType.f32, CPU, Layout.of([tensor.shape[0]]))
        body = Reduction((row,), (column,), ReductionKind.SUM, Op("mul", [given, given]))
        definitions.append(Definition((out,), body))
        outputs.append(TensorRef(out.name))
    buffers = tuple(buffer(f"x{n}", tensor) for n, tensor in enumerate(inputs))
    return Graph("sums", buffers, tuple(definitions), tuple(outputs))


def transposed_halves(inputs):
    """Half of each transposed input."""
    definitions, outputs = [], []
    for number, tensor in enumerate(inputs):
        row, column = (Var(name, n) for name, n in zip("ij", reversed(tensor.shape), strict=True))
        given = Load(f"x{number}", [column.expr, row.expr], DType.f32)
        layout = Layout.of(list(reversed(tensor.shape)))
        out = Buffer(f"y{number}", DType.f32, CPU, layout)
        half = Op("mul", [given, Const(0.5, DType.f32)])
        definitions.append(Definition((out,), Pointwise((row, column), half)))
        outputs.append(TensorRef(out.name))
    buffers = tuple(buffer(f"x{n}", tensor) for n, tensor in enumerate(inputs))
    return Graph("halves", buffers, tuple(definitions), tuple(outputs))


def functions(source):
    return re.findall(r"^KERNEL void \w+_range\(int64_t begin", source, re.MULTILINE)


SHAPES = [(9 + 3 * n, 31 + 17 * ((5 * n) % 13)) for n in range(20)]
SMALL = [(2 + n % 5, 3 + n % 3) for n in range(8)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("make", [row_sums, transposed_halves])
def test_many_sizes_are_one_function(make, threads):
    inputs = [torch.randn(shape) for shape in SHAPES]
    executable = build(schedule(make(inputs)))
    assert executable.fallback_reason is None, executable.fallback_reason
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = executable(*inputs)
    finally:
        torch.set_num_threads(before)
    for given, result in zip(inputs, found, strict=True):
        expected = given.square().sum(1) if make is row_sums else given.T * 0.5
        torch.testing.assert_close(result, expected)
    assert len(functions(executable.source)) < len(SHAPES) / 3


@pytest.mark.parametrize("make", [row_sums, transposed_halves])
def test_small_sizes_and_others_stay_right_side_by_side(make):
    inputs = [
        torch.randn(shape) for shape in (*SMALL, *SHAPES[:5], *SMALL, (1, 1), (0, 9), (40, 1))
    ]
    executable = build(schedule(make(inputs)))
    assert executable.fallback_reason is None, executable.fallback_reason
    for given, result in zip(inputs, executable(*inputs), strict=True):
        expected = given.square().sum(1) if make is row_sums else given.T * 0.5
        torch.testing.assert_close(result, expected)


def test_a_pair_of_sizes_keeps_its_constants():
    """Which compilers make more of than of variables."""
    inputs = [torch.randn(shape) for shape in SHAPES[:2]]
    source = build(schedule(row_sums(inputs))).source
    assert "arguments.n[" not in source
    assert "\x01" not in source


def test_the_source_of_a_shape_is_short():
    """So that compiling many takes little more than compiling few."""

    def length(count):
        options = SchedulerOptions(run_together=False)
        inputs = [torch.randn(9 + 3 * n, 31) for n in range(count)]
        return len(render(schedule(row_sums(inputs), options=options)).splitlines())

    few, some, more = length(10), length(20), length(40)
    assert more - some == 2 * (some - few)
    assert (more - some) / 20 <= 16


def calls(source):
    """How many calls for vectors and for single points kernels of a source have."""
    kernels = source[source.index("KERNEL") :].split("_range(int64_t begin", 1)[1]
    return len(re.findall(r"Lanes<\d\d?>\{\}, at", kernels)), kernels.count("Lanes<1>{}, at")


def halves(inputs):
    """Half of each input."""
    definitions, outputs = [], []
    for number, tensor in enumerate(inputs):
        at = [Var(name, size) for name, size in zip("ij", tensor.shape, strict=False)]
        given = Load(f"x{number}", [each.expr for each in at], DType.f32)
        out = Buffer(f"y{number}", DType.f32, CPU, Layout.of(list(tensor.shape)))
        body = Pointwise(tuple(at), Op("mul", [given, Const(0.5, DType.f32)]))
        definitions.append(Definition((out,), body))
        outputs.append(TensorRef(out.name))
    buffers = tuple(buffer(f"x{n}", tensor) for n, tensor in enumerate(inputs))
    return Graph("halves", buffers, tuple(definitions), tuple(outputs))


def values_of(make, inputs):
    """The source of a program, whose values are right."""
    options = SchedulerOptions(run_together=False)
    executable = build(schedule(make(inputs), options=options))
    assert executable.fallback_reason is None, executable.fallback_reason
    for given, result in zip(inputs, executable(*inputs), strict=True):
        expected = {
            row_sums: lambda x: x.square().sum(1),
            transposed_halves: lambda x: x.T * 0.5,
            halves: lambda x: x * 0.5,
        }[make](given)
        torch.testing.assert_close(result, expected)
    return executable.source


@pytest.mark.parametrize("make", [row_sums, transposed_halves, halves])
def test_vectors_that_leave_nothing_have_no_single_points(make):
    """A compiler would make all statements once more for points that there are not."""
    _, left = calls(values_of(make, [torch.randn(64, 256)]))
    assert left == 0
    _, left = calls(values_of(make, [torch.randn(65, 257)]))
    assert left == 1


@pytest.mark.parametrize("make", [row_sums, transposed_halves, halves])
def test_rows_shorter_than_a_vector_have_no_vectors(make):
    wide, left = calls(values_of(make, [torch.randn(1, 3)]))
    assert (wide, left) == (1, 1)


@pytest.mark.parametrize("make", [row_sums, transposed_halves, halves])
def test_all_that_vectors_leave_is_computed(make):
    for rest in (1, 12):  # of two sizes alike each has its own function
        sizes = (rest, 16 + rest, 64 + rest, 200 + rest)
        values_of(make, [torch.randn(shape) for n in sizes for shape in ((n, 5), (5, n))])
    values_of(make, [torch.randn(7, n) for n in (*range(1, 20), *range(60, 84))])


def test_one_function_of_many_sizes_has_the_single_points_of_any():
    sizes = [(20, 64), (20, 128), (20, 192)]
    _, left = calls(values_of(row_sums, [torch.randn(size) for size in sizes]))
    assert left == 0
    source = values_of(row_sums, [torch.randn(size) for size in (*sizes, (20, 65))])
    assert len(functions(source)) == 1
    assert calls(source)[1] == 1
    assert "\x03" not in source
