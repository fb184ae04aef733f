"""Rows of matrix products get room behind them where only loops read them."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import Graph, interpret, parse_graph, verify
from plait_scheduler import (
    Program,
    Schedule,
    SchedulerOptions,
    load_python,
    plan,
    render_python,
)


def product(
    reader: str = "exp(p[i0, i1])", returned: str = "y", columns: int = 301, dtype: str = "f32"
) -> Graph:
    size = f"[80, {columns}]"
    graph = parse_graph(f"""graph main()
  input a: {dtype}[80, 24] on cpu
  input b: {dtype}[24, {columns}] on cpu
  define p: {dtype}{size} on cpu
    call out aten::mm.out(a, b)
  define y: {dtype}{size} on cpu
    {reader if "call" in reader else f"for i0: 80, i1: {columns} = {reader}"}
  return {returned}
""")
    verify(graph)
    return graph


def strides(program: Program, name: str = "p") -> list[int]:
    (found,) = [buffer for buffer in program.buffers if buffer.name == name]
    return [each.as_int() for each in found.layout.stride]


def run(graph: Graph, **options: object) -> Schedule:
    schedule = plan(graph, options=SchedulerOptions(**options))
    torch.manual_seed(0)
    dtypes = {"f32": torch.float32, "f64": torch.float64}
    given = [
        torch.randn([each.as_int() for each in b.layout.size], dtype=dtypes[str(b.dtype)]) * 0.1
        for b in graph.inputs
    ]
    found = load_python(render_python(schedule.program))(given)
    for got, meant in zip(found, interpret(graph, given), strict=True):
        torch.testing.assert_close(got, meant)
        assert got.stride() == meant.stride()
    return schedule


def test_rows_begin_at_multiples_of_32_bytes():
    schedule = run(product())
    assert strides(schedule.program) == [304, 1]
    assert "padding of rows of p: done" in schedule.explain()
    assert strides(schedule.program, "y") == [301, 1]


def test_it_can_be_switched_off():
    assert strides(run(product(), pad_products=False).program) == [301, 1]


@pytest.mark.parametrize(
    "graph",
    [
        product(columns=304),
        product(columns=77),
        product(dtype="f64"),
        product(returned="y, p"),
        product(returned="y, p.view([301, 80], [1, 301], 0)"),
        product(reader="call new aten::exp(p)"),
    ],
    ids=["even rows", "few columns", "float64", "handed out", "a view handed out", "a call"],
)
def test_others_lie_densely(graph):
    program = run(graph).program
    columns = graph.definitions[0].buffers[0].layout.size[1].as_int()
    assert strides(program) == [columns, 1]


def test_products_of_batches_are_padded_too():
    graph = parse_graph("""graph main()
  input a: f32[3, 80, 24] on cpu
  input b: f32[3, 24, 258] on cpu
  define p: f32[3, 80, 258] on cpu
    call out aten::bmm.out(a, b)
  define y: f32[3, 80] on cpu
    reduce sum for i0: 3, i1: 80 over r0: 258 = exp(p[i0, i1, r0])
  return y
""")
    verify(graph)
    assert strides(run(graph).program) == [80 * 264, 264, 1]


@pytest.mark.parametrize("rows", [2, 5, 80])
def test_rows_whose_number_is_open_are_padded_too(rows):
    graph = parse_graph("""graph main(n >= 2, m >= 2)
  input a: f32[n, m, 24] on cpu
  input b: f32[n, 24, 258] on cpu
  define p: f32[n, m, 258] on cpu
    call out aten::bmm.out(a, b)
  define y: f32[n, m] on cpu
    reduce sum for i0: n, i1: m over r0: 258 = exp(p[i0, i1, r0])
  return y
""")
    verify(graph)
    program = plan(graph, options=SchedulerOptions()).program
    (made,) = [buffer for buffer in program.buffers if buffer.name == "p"]
    assert list(map(str, made.layout.stride)) == ["m*264", "264", "1"]
    a, b = torch.randn(3, rows, 24), torch.randn(3, 24, 258)
    (found,) = load_python(render_python(program))([a, b])
    torch.testing.assert_close(found, (a @ b).exp().sum(-1))
