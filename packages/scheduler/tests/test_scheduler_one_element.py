"""Sums of rows of which one element counts are that element."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import Graph, interpret, parse_graph, verify
from plait_scheduler import SchedulerOptions, load_python, plan, render_python

TEXT = """graph main()
  input t: i64[6] on cpu
  input m: bool[6] on cpu
  input g: f32[6] on cpu
  input x: f32[6, 9] on cpu
  define hot: bool[6, 9] on cpu
    for i0: 6, i1: 9 = {hot}
  define one: f32[6, 9] on cpu
    for i0: 6, i1: 9 = {one}
  define s: f32[6, 1] on cpu
    reduce sum for i0: 6, i1: 1 over r0: 9 = {value}
  define y: f32[6, 9] on cpu
    for i0: 6, i1: 9 = sub(one[i0, i1], mul(x[i0, i1], s[i0, 0]))
  return y
"""
USUAL = {
    "hot": "bitwise_and(eq(t[i0], index(i1)), m[i0])",
    "one": "where(hot[i0, i1], g[i0], f32(0.0))",
    "value": "one[i0, r0]",
}


def checked(**parts: str) -> Graph:
    graph = parse_graph(TEXT.format(**{**USUAL, **parts}))
    verify(graph)
    return graph


def picks(graph: Graph) -> bool:
    """Whether the sum is one element; the program gives what the graph says."""
    schedule = plan(graph)
    given = [
        torch.tensor([0, 8, 3, -1, 9, 5]),
        torch.tensor([True, True, False, True, True, True]),
        torch.tensor([1.5, float("inf"), float("nan"), 2.0, 3.0, -0.0]),
        torch.arange(54.0).view(6, 9),
    ]
    (got,) = load_python(render_python(schedule.program))([each.clone() for each in given])
    (wanted,) = interpret(graph, [each.clone() for each in given])
    assert torch.equal(got.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert torch.equal(got.signbit(), wanted.signbit())
    return any(d.kind.value.startswith("picking") and d.accepted for d in schedule.decisions)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"hot": "eq(t[i0], index(i1))"},
        {"hot": "logical_and(m[i0], eq(index(i1), t[i0]))"},
        {"hot": "bitwise_and(m[i0], bitwise_and(gt(t[i0], i64(2)), eq(index(i1), t[i0])))"},
        {"value": "where(hot[i0, r0], mul(g[i0], g[i0]), f32(0.0))"},
        {"one": "where(hot[i0, i1], f32(1.0), f32(0.0))"},
    ],
)
def test_what_a_target_picks_is_not_summed(parts):
    assert picks(checked(**parts))


@pytest.mark.parametrize(
    "parts",
    [
        {"one": "where(hot[i0, i1], x[i0, i1], f32(0.0))"},  # differs along the row
        {"one": "where(hot[i0, i1], g[i0], f32(1.0))"},
        {"hot": "bitwise_or(eq(t[i0], index(i1)), m[i0])"},
        {"hot": "lt(t[i0], index(i1))"},
        {"hot": "eq(t[i0], index(8 - i1))"},
        {"hot": "eq(index(i1), index(i1))"},
        {"hot": "bitwise_and(eq(t[i0], index(i1)), lt(t[i0], index(i1)))"},
        {"value": "one[i0, 8 - r0]"},
        {"value": "neg(one[i0, r0])"},
    ],
)
def test_other_sums_are_summed(parts):
    assert not picks(checked(**parts))


def test_the_comparison_of_whole_rows_is_not_stored():
    schedule = plan(checked(), options=SchedulerOptions())
    assert len(schedule.program.kernels) == 2
    assert not any(buffer.dtype.itemsize == 1 for buffer in schedule.program.buffers[4:])
