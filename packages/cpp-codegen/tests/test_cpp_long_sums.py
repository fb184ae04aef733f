"""Sums of many terms lose few bits, whatever loop takes them."""

from __future__ import annotations

import math

import pytest
import torch
from cpp_graphs import CPU, reduction_graph

from plait_cpp_codegen import build
from plait_ir_lowering import (
    Buffer,
    Definition,
    DType,
    Graph,
    Layout,
    Load,
    Reduction,
    ReductionKind,
    Sym,
    TensorRef,
    Var,
)
from plait_scheduler import schedule

SUM = [ReductionKind.SUM]
LAYOUTS = {
    "one row": ((300_001,), (0,)),
    "rows": ((3, 90_001), (1,)),
    "short rows": ((9000, 3, 7), (0, 2)),
    "rows of vectors": ((900, 3, 70), (0, 2)),
    "rows of several blocks": ((9, 3, 7000), (0, 2)),
    "columns": ((20_000, 5), (0,)),
    "streamed columns": ((20_000, 100), (0,)),
    "streamed short columns": ((5000, 3, 4, 90), (0, 2)),
    "images": ((40, 16, 30, 30), (0, 2, 3)),
}
TERMS = {
    "alike": lambda shape: torch.full(shape, 0.1),
    "of two kinds": lambda shape: torch.where(torch.rand(shape) < 0.7, 0.1, 0.4),
    "far from zero": lambda shape: torch.rand(shape) + 100,
}


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.sampled(3)
def test_little_is_lost(name, terms):
    torch.manual_seed(0)
    shape, axes = LAYOUTS[name]
    x = TERMS[terms](shape)
    (total,) = build(schedule(reduction_graph(x, axes, SUM)))(x)
    torch.testing.assert_close(total.double(), x.double().sum(axes), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["one row", "short rows", "columns", "streamed columns"])
def test_infinities_and_nan_are_what_a_sum_makes_of_them(name):
    shape, axes = LAYOUTS[name]
    x = torch.ones(shape)
    run = build(schedule(reduction_graph(x, axes, SUM)))
    for given in ([math.inf], [-math.inf], [math.inf, -math.inf], [math.nan], [3e38, 3e38]):
        x = torch.ones(shape)
        for number, value in enumerate(given):
            sizes = enumerate(shape)
            x[tuple((number + 1) * 977 % n if dim in axes else 0 for dim, n in sizes)] = value
        assert not torch.equal(x, torch.ones(shape))
        assert torch.equal(run(x)[0].nan_to_num(7, 8, 9), x.sum(axes).nan_to_num(7, 8, 9))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_sizes_that_are_not_known(axes):
    sizes = [Sym(f"n{number}") for number in range(3)]
    layout = Layout.of([each.expr for each in sizes])
    places = [
        Var(f"i{n}" if n not in axes else f"r{n}", size) for n, size in enumerate(layout.size)
    ]
    kept = tuple(var for n, var in enumerate(places) if n not in axes)
    reduced = tuple(var for n, var in enumerate(places) if n in axes)
    value = Load("x", [var.expr for var in places], DType.f32)
    out = Buffer("total", DType.f32, CPU, Layout.of([var.extent for var in kept]))
    body = Definition((out,), Reduction(kept, reduced, ReductionKind.SUM, value))
    source = Buffer("x", DType.f32, CPU, layout)
    run = build(schedule(Graph("test", (source,), (body,), (TensorRef("total"),))))
    for shape in ((9000, 3, 7), (3, 9000, 7), (7, 3, 9000), (400, 40, 20), (1, 1, 1)):
        x = torch.full(shape, 0.1)
        (total,) = run(x)
        torch.testing.assert_close(total.double(), x.double().sum(axes), rtol=1e-6, atol=0)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 9)])
@pytest.mark.sampled(3)
def test_no_sum_is_a_negative_zero(shape, axes):
    x = torch.full(shape, -0.0)
    (total,) = build(schedule(reduction_graph(x, axes, SUM)))(x)
    assert torch.equal(torch.signbit(total), torch.signbit(x.sum(axes)))
    assert not torch.signbit(total).any()
