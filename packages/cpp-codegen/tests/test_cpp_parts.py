"""External calls and kernels write to their parts of a buffer, in closed and in open sizes."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import both

from plait_cpp_codegen import render
from plait_ir_lowering import Graph, parse_graph
from plait_scheduler import PartStorage, schedule


def joined(rows: int | str, returned: str = "y", more: str = "") -> Graph:
    """Two products of `rows` by 16 beside each other, and between them the exponential of a third
    input."""
    sizes = "" if isinstance(rows, int) else f"{rows} >= 2"
    return parse_graph(f"""graph main({sizes})
  input a: f32[{rows}, 24] on cpu
  input b: f32[24, 16] on cpu
  input c: f32[{rows}, 8] on cpu
  define p: f32[{rows}, 16] on cpu
    call out aten::mm.out(a, b)
  define q: f32[{rows}, 16] on cpu
    call out aten::mm.out(a, b)
  define y: f32[{rows}, 40] on cpu
    for i0: {rows}, i1: 40 = masked(logical_and(ge(index(i1), i64(24)), lt(index(i1), i64(40))), \
q[i0, i1 - 24], masked(logical_and(ge(index(i1), i64(16)), lt(index(i1), i64(24))), \
exp(c[i0, i1 - 16]), masked(logical_and(ge(index(i1), i64(0)), lt(index(i1), i64(16))), \
p[i0, i1], f32(0.0))))
{more}  return {returned}
""")


def behind(rows: int | str) -> Graph:
    """Two products behind each other, of which the first has `rows` rows."""
    sizes = "" if isinstance(rows, int) else f"{rows} >= 2"
    first = f"i64({rows})" if isinstance(rows, int) else f"index({rows})"
    last = f"i64({rows + 5})" if isinstance(rows, int) else f"index({rows} + 5)"
    return parse_graph(f"""graph main({sizes})
  input a: f64[{rows}, 24] on cpu
  input b: f64[24, 16] on cpu
  input c: f64[5, 24] on cpu
  define p: f64[{rows}, 16] on cpu
    call out aten::mm.out(a, b)
  define q: f64[5, 16] on cpu
    call out aten::mm.out(c, b)
  define y: f64[{rows} + 5, 16] on cpu
    for i0: {rows} + 5, i1: 16 = \
masked(logical_and(ge(index(i0), {first}), lt(index(i0), {last})), q[i0 - {rows}, i1], \
masked(logical_and(ge(index(i0), i64(0)), lt(index(i0), {first})), \
p[i0, i1], f64(0.0)))
  return y
""")


def parts(graph: Graph) -> list[str]:
    return [b.name for b in schedule(graph).buffers if isinstance(b.storage, PartStorage)]


@pytest.mark.parametrize("rows", [6, "s0"])
def test_results_are_written_side_by_side(rows):
    graph = joined(rows)
    assert set(parts(graph)) == {"p", "q", "y_part"}
    assert "data_q = data_y + 96" in render(schedule(graph))
    for count in (6,) if rows == 6 else (6, 2, 300):
        a, b, c = torch.randn(count, 24), torch.randn(24, 16), torch.randn(count, 8)
        for (found,) in both(graph, [a, b, c]):
            torch.testing.assert_close(found, torch.cat([a @ b, c.exp(), a @ b], 1))


@pytest.mark.parametrize("rows", [6, "s0"])
def test_results_are_written_one_behind_the_other(rows):
    graph = behind(rows)
    assert parts(graph) == ["p", "q"]
    a, b, c = (torch.randn(*size, dtype=torch.float64) for size in ((6, 24), (24, 16), (5, 24)))
    for (found,) in both(graph, [a, b, c]):
        torch.testing.assert_close(found, torch.cat([a, c]) @ b)


def test_a_temporary_has_parts():
    more = """  define z: f32[6, 6] on cpu
    call out aten::mm.out(y, y.view([40, 6], [1, 40], 0))
"""
    graph = joined(6, "z", more)
    assert set(parts(graph)) == {"p", "q", "y_part"}
    a, b, c = torch.randn(6, 24), torch.randn(24, 16), torch.randn(6, 8)
    y = torch.cat([a @ b, c.exp(), a @ b], 1)
    for (found,) in both(graph, [a, b, c]):
        torch.testing.assert_close(found, y @ y.t())
