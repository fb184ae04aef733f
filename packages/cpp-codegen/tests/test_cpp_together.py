"""Launches in one parallel region, and results that are computed in inputs."""

import pytest
import torch
from cpp_graphs import CPU, buffer

from plait_cpp_codegen import build
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
    TensorRef,
    Var,
)
from plait_scheduler import schedule


def updates(inputs):
    """The exponential of each input, written over it."""
    definitions, mutations = [], []
    for number, tensor in enumerate(inputs):
        ranges = tuple(Var(f"i{n}", size) for n, size in enumerate(tensor.shape))
        given = Load(f"x{number}", [var.expr for var in ranges], DType.f32)
        half = Op("mul", [given, Const(0.5, DType.f32)])
        out = Buffer(f"y{number}", DType.f32, CPU, Layout.of(list(tensor.shape)))
        definitions.append(Definition((out,), Pointwise(ranges, half)))
        mutations.append((f"x{number}", TensorRef(out.name)))
    buffers = tuple(buffer(f"x{n}", tensor) for n, tensor in enumerate(inputs))
    return Graph("updates", buffers, tuple(definitions), (), tuple(mutations))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 100, 70_001])
@pytest.mark.sampled(3)
def test_many_kernels_are_one_parallel_region(threads, size):
    shapes = [(size,), (1,), (), (3, 5), (0,), (size, 2), (7,)] * 3
    inputs = [torch.randn(shape) for shape in shapes]
    executable = build(schedule(updates(inputs)))
    assert executable.fallback_reason is None, executable.fallback_reason
    assert executable.source.count("run_parts(parts") == 1
    expected = [each * 0.5 for each in inputs]
    places = [each.data_ptr() for each in inputs]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert executable(*inputs) == ()
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, inputs, expected))
    assert places == [each.data_ptr() for each in inputs]
