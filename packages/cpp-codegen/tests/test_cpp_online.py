"""Logarithms of sums of exponentials over long rows take one pass, whatever the rows hold."""

from __future__ import annotations

import math

import pytest
import torch
from cpp_graphs import CPU, buffer

from plait_cpp_codegen import build
from plait_cpp_codegen.kernels.emit import render_kernel
from plait_ir_lowering import (
    Buffer,
    Definition,
    Graph,
    Layout,
    Load,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Var,
    from_torch_dtype,
)
from plait_scheduler import schedule

INF = math.inf


def _log_sum_exp(x: torch.Tensor, *, below: str = "max") -> Graph:
    """The logarithm of the sum of e^(x - m), and m, the largest (or least) of a row."""
    rows, columns = x.shape
    source, i, r = buffer("x", x), Var("i", rows), Var("r", columns)
    dtype, layout = from_torch_dtype(x.dtype), Layout.of([rows])

    def of_row(name: str) -> Load:
        return Load(name, [i.expr], dtype)

    at = Load("x", [i.expr, r.expr], dtype)
    kind = ReductionKind.MAX if below == "max" else ReductionKind.MIN
    e = Op("exp", [Op("sub", [at, of_row("m")])])
    return Graph(
        "test",
        (source,),
        (
            Definition((Buffer("m", dtype, CPU, layout),), Reduction((i,), (r,), kind, at)),
            Definition(
                (Buffer("s", dtype, CPU, layout),), Reduction((i,), (r,), ReductionKind.SUM, e)
            ),
            Definition(
                (Buffer("y", dtype, CPU, layout),), Pointwise((i,), Op("log", [of_row("s")]))
            ),
        ),
        (TensorRef("m"), TensorRef("y")),
    )


def _is_online(graph: Graph) -> bool:
    return any("scaled_to(" in render_kernel(k, 64).body for k in schedule(graph).kernels)


def _check(x: torch.Tensor) -> None:
    graph = _log_sum_exp(x)
    assert _is_online(graph)
    m, y = build(schedule(graph))(x)
    wide = x.double()
    largest = wide.amax(1)
    expected = (wide - largest[:, None]).exp().sum(1).log()
    torch.testing.assert_close(m, largest.to(x.dtype), rtol=0, atol=0, equal_nan=True)
    tolerance = 1e-6 if x.dtype is torch.float32 else 1e-14
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_right_to_the_last_places(dtype):
    torch.manual_seed(0)
    _check(3 * torch.randn(5, 10_007, dtype=dtype))


def test_every_block_may_bring_a_larger_maximum():
    _check(torch.linspace(-300, 300, 4 * 9000).view(4, 9000))


def test_special_values_are_those_of_two_passes():
    x = torch.randn(8, 9001)
    x[0, 5000] = math.nan
    x[1, -1] = math.nan
    x[2] = -INF
    x[3, :4096] = -INF
    x[4, 8000] = INF
    x[5, 10], x[5, 7000] = INF, math.nan
    x[6, 4096:] = -INF
    x[7] = 3e38
    _check(x)


def test_short_rows_and_other_sums_take_two_passes():
    assert not _is_online(_log_sum_exp(torch.empty(5, 4095)))
    assert not _is_online(_log_sum_exp(torch.empty(5, 9000), below="min"))


def test_what_is_kept_of_exponentials_is_below_the_last_maximum():
    """A softmax keeps them for its quotients, so its sum waits for the maximum of the whole row."""
    x = 5 * torch.randn(3, 9000)
    rows, columns = x.shape
    i, r, j = Var("i", rows), Var("r", columns), Var("j", columns)
    base = _log_sum_exp(x)
    f32 = base.inputs[0].dtype

    def e(var: Var) -> Op:
        at = Load("x", [i.expr, var.expr], f32)
        return Op("exp", [Op("sub", [at, Load("m", [i.expr], f32)])])

    kept = Definition((Buffer("e", f32, CPU, Layout.of([rows, columns])),), Pointwise((i, j), e(j)))
    quotient = Op("div", [Load("e", [i.expr, j.expr], f32), Load("s", [i.expr], f32)])
    total = Reduction((i,), (r,), ReductionKind.SUM, Load("e", [i.expr, r.expr], f32))
    graph = Graph(
        "softmax",
        base.inputs,
        (
            base.definitions[0],
            kept,
            Definition((Buffer("s", f32, CPU, Layout.of([rows])),), total),
            Definition(
                (Buffer("q", f32, CPU, Layout.of([rows, columns])),), Pointwise((i, j), quotient)
            ),
        ),
        (TensorRef("q"),),
    )
    assert not _is_online(graph)
    (q,) = build(schedule(graph))(x)
    torch.testing.assert_close(q.double(), x.double().softmax(1), rtol=2e-6, atol=1e-12)
