"""The quotients of a softmax are rounded as divisions are, without one."""

from __future__ import annotations

import math

import torch
from cpp_graphs import CPU, buffer

from plait_cpp_codegen import build
from plait_cpp_codegen.kernels.emit import render_kernel
from plait_ir_lowering import (
    Buffer,
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
    Value,
    Var,
)
from plait_scheduler import schedule

f32 = DType.f32


def _softmax(x: torch.Tensor, *, shifted: bool = True) -> Graph:
    """With the exponentials and their sums, to divide them again."""
    rows, columns = x.shape
    i, r, j = Var("i", rows), Var("r", columns), Var("j", columns)

    def at(name: str, *places: Var) -> Load:
        return Load(name, [place.expr for place in places], f32)

    def e(place: Var) -> Value:
        value = at("x", i, place)
        return Op("exp", [Op("sub", [value, at("m", i)])] if shifted else [value])

    def of(*size: int, name: str) -> tuple[Buffer]:
        return (Buffer(name, f32, CPU, Layout.of(size)),)

    maximum = Reduction((i,), (r,), ReductionKind.MAX, at("x", i, r))
    total = Reduction((i,), (r,), ReductionKind.SUM, at("e", i, r))
    quotient = Op("div", [at("e", i, j), at("s", i)])
    definitions = (
        Definition(of(rows, name="m"), maximum),
        Definition(of(rows, columns, name="e"), Pointwise((i, j), e(j))),
        Definition(of(rows, name="s"), total),
        Definition(of(rows, columns, name="q"), Pointwise((i, j), quotient)),
    )
    used = definitions if shifted else definitions[1:]
    return Graph("test", (buffer("x", x),), used, tuple(map(TensorRef, ("e", "s", "q"))))


def _is_multiplied(graph: Graph) -> bool:
    return any("share_of<L>(" in render_kernel(k, 64).body for k in schedule(graph).kernels)


def test_quotients_are_those_of_divisions():
    torch.manual_seed(0)
    x = 4 * torch.randn(300, 1003)
    assert _is_multiplied(_softmax(x))
    e, s, q = build(schedule(_softmax(x)))(x)
    assert torch.equal(q, e / s[:, None])


def test_special_values_are_those_of_divisions():
    x = torch.randn(6, 100)
    x[0, 3] = math.nan
    x[1, 4] = math.inf
    x[2, 5:50] = -math.inf
    x[3] = -math.inf
    x[4, 1:] = -90.0
    x[4, 0] = 0.0
    x[5] = -3e38
    e, s, q = build(schedule(_softmax(x)))(x)
    torch.testing.assert_close(q, e / s[:, None], rtol=0, atol=1e-44, equal_nan=True)


def test_sums_that_may_overflow_divide():
    assert not _is_multiplied(_softmax(torch.empty(300, 1003), shifted=False))
