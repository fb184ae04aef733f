"""Scatters for a GPU: in which types they combine, and what stays a call of ATen."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import (
    Buffer,
    Definition,
    Device,
    DType,
    Graph,
    Layout,
    Load,
    LoweringOptions,
    Pointwise,
    Scatter,
    ScatterKind,
    TensorRef,
    Var,
    external_ops,
    interpret,
    lower,
    verify,
)
from plait_ir_lowering.rules.atomics import atomic

SPECIAL = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, 3e-45, -3e-45, 3.4e38, math.nan]


def _lowered(function, *shapes, options: LoweringOptions | None = None) -> Graph:
    """The graph of a function of tensors on a GPU that need not be there."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty(size, dtype=dtype, device="cuda:0") for size, dtype in shapes]
        traced = make_fx(lambda *given: (function(*given),))(*fakes)
    graph = lower(traced, options=options)
    verify(graph)
    return graph


def _scatters(graph: Graph) -> list[tuple[ScatterKind, DType]]:
    bodies = [(d.body, d.buffers[0].dtype) for d in graph.definitions]
    return [(body.kind, dtype) for body, dtype in bodies if isinstance(body, Scatter)]


ADDED = {
    torch.float32: (ScatterKind.ADD, DType.f32),
    torch.float64: (ScatterKind.ADD, DType.f64),
    torch.bfloat16: (ScatterKind.ADD, DType.f32),
    torch.float16: (ScatterKind.ADD, DType.f32),
    torch.int64: (ScatterKind.ADD, DType.i64),
    torch.int8: (ScatterKind.ADD, DType.i32),
    torch.bool: (ScatterKind.MAX, DType.i32),
}


@pytest.mark.parametrize("dtype", ADDED, ids=str)
def test_additions_are_those_that_are_atomic(dtype: torch.dtype) -> None:
    given = ((10, 4), dtype), ((6, 4), torch.int64), ((6, 4), dtype)
    graph = _lowered(lambda x, i, s: x.scatter_add(0, i, s), *given)
    assert _scatters(graph) == [ADDED[dtype]]
    assert not external_ops(graph)


def _reduced(reduce: str, dtype: torch.dtype, options: LoweringOptions | None = None) -> Graph:
    given = ((10, 4), dtype), ((6, 4), torch.int64), ((6, 4), dtype)
    return _lowered(lambda x, i, s: x.scatter_reduce(0, i, s, reduce), *given, options=options)


def test_extremes_of_floats_are_those_of_integers() -> None:
    assert _scatters(_reduced("amax", torch.bfloat16)) == [(ScatterKind.MAX, DType.i32)]
    assert _scatters(_reduced("amin", torch.float64)) == [(ScatterKind.MIN, DType.i64)]


def test_products_stay_calls() -> None:
    assert external_ops(_reduced("prod", torch.float32)) == {"aten::scatter_reduce.two": 1}


@pytest.mark.parametrize("kind", [ScatterKind.MAX, ScatterKind.MIN])
@pytest.mark.parametrize("dtype", [DType.f32, DType.f64, DType.f16, DType.bf16])
def test_keys_are_ordered_as_floats(kind: ScatterKind, dtype: DType) -> None:
    """Also zeros by their signs and the smallest numbers; NaN wins, and comes back as NaN."""
    how = atomic(kind, dtype)
    assert how is not None
    cpu, count = Device("cpu"), len(SPECIAL)
    i0 = Var("i0", count)
    x = Buffer("x", dtype, cpu, Layout.of([count]))
    keys = Buffer("keys", how.dtype, cpu, Layout.of([count]))
    back = Buffer("back", dtype, cpu, Layout.of([count]))
    graph = Graph(
        "keys",
        (x,),
        (
            Definition((keys,), Pointwise((i0,), how.enter(Load("x", [i0.expr], dtype)))),
            Definition((back,), Pointwise((i0,), how.leave(Load("keys", [i0.expr], how.dtype)))),
        ),
        (TensorRef("keys"), TensorRef("back")),
    )
    verify(graph)
    torch_dtype = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16}
    given = torch.tensor(SPECIAL, dtype=torch_dtype.get(str(dtype), torch.bfloat16))
    found, again = interpret(graph, [given])
    numbers, nan = given[:-1], found[-1]
    torch.testing.assert_close(again, given, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(again[:-1].signbit(), numbers.signbit())
    order = sorted(range(count - 1), key=lambda n: (float(numbers[n]), not numbers[n].signbit()))
    assert found[order].tolist() == sorted(found[:-1].tolist())
    beyond = found[:-1] < nan if kind is ScatterKind.MAX else found[:-1] > nan
    assert bool(beyond.all())
