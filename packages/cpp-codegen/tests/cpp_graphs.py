"""Loop IR graphs built by hand, and their results in C++ and in Python over ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from plait_cpp_codegen import build
from plait_ir_lowering import (
    Buffer,
    Definition,
    Device,
    Graph,
    Layout,
    Load,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Value,
    Var,
    from_torch_dtype,
)
from plait_scheduler import load_python, render_python, schedule, verify_program

CPU = Device("cpu")


def buffer(name: str, tensor: torch.Tensor) -> Buffer:
    layout = Layout.of(list(tensor.shape), list(tensor.stride()))
    return Buffer(name, from_torch_dtype(tensor.dtype), CPU, layout)


def loads(buffers: Sequence[Buffer], ranges: Sequence[Var]) -> list[Value]:
    """Each buffer's element at the same point."""
    return [Load(b.name, [v.expr for v in ranges], b.dtype) for b in buffers]


def pointwise_graph(
    inputs: Sequence[torch.Tensor], computes: dict[str, Callable[..., Value]]
) -> Graph:
    """One output for each function of the inputs' elements, which have one shape."""
    buffers = [buffer(f"x{n}", tensor) for n, tensor in enumerate(inputs)]
    shape = [int(s) for s in inputs[0].shape]
    ranges = tuple(Var(f"i{n}", s) for n, s in enumerate(shape))
    definitions = []
    for name, compute in computes.items():
        value = compute(*loads(buffers, ranges))
        out = Buffer(name, value.dtype, CPU, Layout.of(shape))
        definitions.append(Definition((out,), Pointwise(ranges, value)))
    outputs = tuple(TensorRef(name) for name in computes)
    return Graph("test", tuple(buffers), tuple(definitions), outputs)


def reduction_graph(
    tensor: torch.Tensor, axes: Sequence[int], kinds: Sequence[ReductionKind]
) -> Graph:
    """The reductions of one tensor over `axes`."""
    source = buffer("x", tensor)
    kept, reduced, places = [], [], []
    for axis, size in enumerate(tensor.shape):
        var = Var(f"r{len(reduced)}" if axis in axes else f"i{len(kept)}", int(size))
        (reduced if axis in axes else kept).append(var)
        places.append(var.expr)
    definitions = []
    for kind in kinds:
        value = Load("x", places, source.dtype)
        dtype = kind.result_dtype(source.dtype)
        out = Buffer(kind.value, dtype, CPU, Layout.of([v.extent for v in kept]))
        body = Reduction(tuple(kept), tuple(reduced), kind, value)
        definitions.append(Definition((out,), body))
    outputs = tuple(TensorRef(kind.value) for kind in kinds)
    return Graph("test", (source,), tuple(definitions), outputs)


def both(
    graph: Graph, inputs: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs of the C++ program, and of the same program as Python."""
    program = schedule(graph)
    verify_program(program)
    executable = build(program)
    assert executable.fallback_reason is None, executable.fallback_reason
    return list(executable(*inputs)), list(load_python(render_python(program))(inputs))
