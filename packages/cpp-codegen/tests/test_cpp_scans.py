"""Scans: along rows, lane after lane, and across rows, where each lane is a row of its own."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import CPU, buffer

from plait_cpp_codegen import build
from plait_ir_lowering import (
    Buffer,
    Definition,
    DType,
    Graph,
    IndexValue,
    Layout,
    Load,
    Op,
    Pack,
    Pointwise,
    Reduction,
    ReductionKind,
    Scan,
    TensorRef,
    Value,
    Var,
    as_index,
    carried,
)
from plait_scheduler import schedule

SHAPES = [(70,), (16, 33), (3, 5, 24), (200, 3), (4, 0)]


def scan_graph(tensor: torch.Tensor, axis: int, *, joined: str = "add") -> Graph:
    """The running sum in f64, twice it, and (pairs) the largest so far with its position."""
    source = buffer("x", tensor)
    ranges = tuple(Var(f"i{n}", s) for n, s in enumerate(source.layout.size))
    load = Load("x", [v.expr for v in ranges], source.dtype)
    (a,), (b,) = carried("a", [DType.f64]), carried("b", [DType.f64])
    total = Scan(ranges, ranges[axis], Op("to", [load], DType.f64), Op(joined, [a, b]), a)
    dtypes = [source.dtype, DType.i64]
    old, new = carried("a", dtypes), carried("b", dtypes)
    takes = Op("gt", [new[0], old[0]])
    join = Pack([Op("where", [takes, n, o]) for n, o in zip(new, old)])
    pair = Pack([load, IndexValue(ranges[axis].expr)])
    layout = Layout.of(source.layout.size)

    def define(name: str, dtype: DType, body: Scan | Pointwise) -> Definition:
        return Definition((Buffer(name, dtype, CPU, layout),), body)

    twice: Value = Load("sum", [v.expr for v in ranges], DType.f64)
    definitions = (
        define("sum", DType.f64, total),
        define("twice", DType.f64, Pointwise(ranges, Op("add", [twice, twice]))),
        define("most", source.dtype, Scan(ranges, ranges[axis], pair, join, old[0])),
        define("at", DType.i64, Scan(ranges, ranges[axis], pair, join, old[1])),
    )
    outputs = tuple(TensorRef(d.buffers[0].name) for d in definitions)
    return Graph("scans", (source,), definitions, outputs)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
@pytest.mark.sampled(2)
def test_scans_go_along_the_axis_in_order(shape, dtype):
    x = (torch.randn(shape) * 10).to(dtype)
    for axis in range(len(shape)):
        graph = scan_graph(x, axis)
        total, twice, most, at = build(schedule(graph))(x)
        expected = x.double().cumsum(axis)
        assert torch.equal(total, expected)
        assert torch.equal(twice, 2 * expected)
        if x.numel():
            assert torch.equal(most, x.cummax(axis).values)
            assert torch.equal(x.gather(axis, at), most)


def test_one_value_may_be_the_same_for_a_whole_row():
    source = buffer("x", x := torch.randn(5, 1))
    ranges = i, j = Var("i0", 5), Var("i1", 40)
    (a,), (b,) = carried("a", [DType.f64]), carried("b", [DType.f64])
    value = Op("to", [Load("x", [i.expr, as_index(0)], DType.f32)], DType.f64)
    scan = Scan(ranges, j, value, Op("add", [a, b]), a)
    result = Buffer("y", DType.f64, CPU, Layout.of([5, 40]))
    graph = Graph("g", (source,), (Definition((result,), scan),), (TensorRef("y"),))
    made = build(schedule(graph))
    assert made.fallback_reason is None
    torch.testing.assert_close(made(x)[0], x.double().expand(5, 40).cumsum(1))


def test_equal_scans_are_one():
    graph = scan_graph(torch.randn(8, 9), 1)
    (kernel,) = schedule(graph).kernels
    scans = [s for s in kernel.statements if type(s).__name__ == "Accumulate"]
    assert len(scans) == 2


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_between_reductions_is_kept_in_scratch(axis):
    """Softmax without its maximum, its running sum, and that less its mean: three passes."""
    x = torch.randn(37, 50)
    source = buffer("x", x)
    i, j = ranges = (Var("i0", 37), Var("i1", 50))
    inner, outer = (j, i) if axis else (i, j)

    def at(name: str, *places: Var) -> Load:
        return Load(name, [place.expr for place in places], DType.f32)

    def made(name: str, sizes: tuple[Var, ...]) -> tuple[Buffer]:
        return (Buffer(name, DType.f32, CPU, Layout.of([v.extent for v in sizes])),)

    def total(value: Value) -> Reduction:
        return Reduction((outer,), (inner,), ReductionKind.SUM, value)

    (a,), (b,) = carried("a", [DType.f32]), carried("b", [DType.f32])
    share = Op("div", [Op("exp", [at("x", i, j)]), at("s", outer)])
    centred = Op("sub", [at("c", i, j), at("m", outer)])
    definitions = (
        Definition(made("s", (outer,)), total(Op("exp", [at("x", i, j)]))),
        Definition(made("c", ranges), Scan(ranges, inner, share, Op("add", [a, b]), a)),
        Definition(made("m", (outer,)), total(at("c", i, j))),
        Definition(made("y", ranges), Pointwise(ranges, centred)),
    )
    graph = Graph("g", (source,), definitions, (TensorRef("y"),))
    assert len(schedule(graph).kernels) == 1
    (found,) = build(schedule(graph))(x)
    running = (x.exp() / x.exp().sum(axis, keepdim=True)).cumsum(axis)
    expected = running - running.sum(axis, keepdim=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
