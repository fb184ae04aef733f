"""Scans: running sums, products, extrema and log-sums, bit for bit as eager on a CPU."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import check, record

from plait_ir_lowering import (
    Buffer,
    Definition,
    Device,
    DType,
    Graph,
    IndexValue,
    Layout,
    Load,
    Local,
    LoopIRError,
    Op,
    Pack,
    Scan,
    TensorRef,
    Var,
    carried,
    external_ops,
    interpret,
    lower,
    verify,
)

SCANS = [
    lambda x, axis: torch.cumsum(x, axis),
    lambda x, axis: torch.cumprod(x, axis),
    lambda x, axis: torch.logcumsumexp(x, axis),
    lambda x, axis: torch.cummax(x, axis),
    lambda x, axis: torch.cummin(x, axis),
]
INTEGER = [number for number in range(len(SCANS)) if number != 2]
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def samples(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(3, 7, 5) * 3
    special = torch.tensor([-0.0, 0.0, float("inf"), 1.0, float("-inf"), float("nan"), 2.0])
    if not dtype.is_floating_point:
        return [x.to(dtype), x.to(dtype)[:, 3:3], torch.tensor(3).to(dtype)]
    endless = torch.tensor([[float("-inf"), float("-inf"), 1.0], [-0.0, -0.0, float("inf")]])
    return [x.to(dtype), special.to(dtype), endless.to(dtype), torch.tensor(-0.0, dtype=dtype)]


@pytest.mark.parametrize("number", range(len(SCANS)))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scans_of_floats_are_eagers_bit_for_bit(number, dtype):
    for x in samples(dtype):
        for axis in range(-1, max(x.dim(), 1)):

            def program(x, axis=axis):
                return SCANS[number](x, axis)

            graph = check(program, x, tolerance=1e-12)
            assert not external_ops(graph)
            found, expected = interpret(graph, [x]), program(x)
            whole = expected if isinstance(expected, tuple) else (expected,)
            for ours, theirs in zip(found, whole, strict=True):
                off = 4 * torch.finfo(dtype).eps if number == 2 else 0  # torch's own log1p differs
                torch.testing.assert_close(ours, theirs, rtol=off, atol=0, equal_nan=True)
                if ours.dtype.is_floating_point:
                    known = ~theirs.isnan()
                    assert torch.equal(ours.signbit()[known], theirs.signbit()[known])


@pytest.mark.parametrize("number", INTEGER)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_scans_of_integers_promote_as_eager(number, dtype):
    for x in samples(dtype):
        for axis in range(-1, max(x.dim(), 1)):
            graph = check(lambda x, axis=axis: SCANS[number](x, axis), x)
            assert not external_ops(graph)


def test_written_dtypes_round_and_wrap_before_the_sum():
    x = torch.randn(50) * 100
    for dtype in (torch.int8, torch.float16, torch.float64, torch.int64):
        for scan in (torch.cumsum, torch.cumprod):
            check(lambda x, scan=scan, dtype=dtype: scan(x, 0, dtype=dtype), x)


def carrying(value, combine, result, dtype=DType.f32):
    i, j = Var("i0", 3), Var("i1", 7)
    x = Buffer("x", DType.f32, Device("cpu"), Layout.of([3, 7]))
    y = Buffer("y", dtype, Device("cpu"), Layout.of([3, 7]))
    load = Load("x", [i.expr, j.expr], DType.f32)
    body = Scan((i, j), j, value(load, j), combine, result)
    return Graph("g", (x,), (Definition((y,), body),), (TensorRef("y"),))


A, B = carried("a", [DType.f32])[0], carried("b", [DType.f32])[0]


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (carrying(lambda x, j: x, Op("add", [A, B]), Op("to", [A], DType.f64)), "f64 result"),
        (carrying(lambda x, j: x, Op("add", [A, Local("c0", DType.f32)]), A), "not part"),
        (carrying(lambda x, j: x, Op("add", [A, B]), B), "not part"),
        (carrying(lambda x, j: Pack([x, IndexValue(j.expr)]), Op("add", [A, B]), A), "components"),
        (carrying(lambda x, j: Op("to", [x], DType.f64), Op("add", [A, B]), A), "components"),
    ],
)
def test_broken_scans_are_refused(graph, reason):
    with pytest.raises(LoopIRError, match=reason):
        verify(graph)


def test_a_scan_along_no_loop_is_refused():
    graph = carrying(lambda x, j: x, Op("add", [A, B]), A)
    (definition,) = graph.definitions
    body = definition.body
    broken = Scan(body.ranges, Var("i1", 6), body.value, body.combine, body.result)
    with pytest.raises(LoopIRError, match="no loop"):
        verify(Graph("g", graph.inputs, (Definition(definition.buffers, broken),), graph.outputs))


def test_backward_of_a_running_sum_is_loops():
    def program(g):
        return torch.cumsum(g.flip([1]), 1).flip([1])

    graph = lower(record(program, [torch.randn(4, 6)]))
    assert not external_ops(graph)
    check(program, torch.randn(4, 6))
