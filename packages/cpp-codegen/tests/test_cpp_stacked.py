"""Many tensors side by side: vectors lie along them, not across."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import CPU, buffer

from plait_cpp_codegen import build
from plait_cpp_codegen.kernels.plan import plan_loops
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
    TensorRef,
    Value,
    Var,
)
from plait_scheduler import Kernel, schedule


def stacked(tensors):
    """The graph of `torch.stack(tensors)`: of each place, the one that lies there."""
    inputs = [buffer(f"x{n}", tensor) for n, tensor in enumerate(tensors)]
    row, column = Var("i0", len(tensors)), Var("i1", len(tensors[0]))
    value: Value = Const(0.0, DType.f32)
    for number, each in reversed([*enumerate(inputs)]):
        mask = Op("eq", [IndexValue(row.expr), Const(number, DType.i64)])
        value = Masked(mask, Load(each.name, [column.expr], DType.f32), value)
    made = Buffer("y", DType.f32, CPU, Layout.of([len(tensors), len(tensors[0])]))
    body = Pointwise((row, column), value)
    return Graph("stack", tuple(inputs), (Definition((made,), body),), (TensorRef("y"),))


@pytest.mark.parametrize("count", [3, 32, 70])
def test_vectors_lie_along_what_is_stacked(count):
    tensors = [torch.randn(200) for _ in range(count)]
    program = schedule(stacked(tensors))
    (kernel,) = program.kernels
    assert isinstance(kernel, Kernel)
    vector = plan_loops(kernel, 64).vector
    assert vector is not None
    assert vector.extent.as_int() == 200
    assert torch.equal(build(program)(*tensors)[0], torch.stack(tensors))
