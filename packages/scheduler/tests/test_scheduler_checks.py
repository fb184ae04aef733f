"""Checks of what nothing reads, or not all of, are kept; and raised in eager's order."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import parse_graph, print_graph, verify
from plait_scheduler import (
    CallExtern,
    Launch,
    SchedulerOptions,
    load_python,
    plan,
    print_kernel,
    render_python,
)
from plait_scheduler.checks import keep_checks

HEAD = """
graph main()
  input x: f32[5, 4] on cpu
  input n: i64[3] on cpu
  define y: f32[3, 4] on cpu
    for i0: 3, i1: 4 = x[checked(n[i0], 5), i1]
"""
GOOD, BAD = torch.tensor([0, 4, -1]), torch.tensor([0, 4, 5])


def graph_of(text):
    return parse_graph(HEAD.lstrip() + text.lstrip("\n"))


LOST = {
    "nothing reads it": """
  define z: f32[4] on cpu
    for i0: 4 = x[0, i0]
  return z
""",
    "a part is read": """
  define z: f32[2, 4] on cpu
    for i0: 2, i1: 4 = y[i0, i1]
  return z
""",
    "only some rows are read": """
  define z: f32[2] on cpu
    for i0: 2 = y[i0, 0]
  return z
""",
    "a part is read of what reads all": """
  define w: f32[3, 4] on cpu
    for i0: 3, i1: 4 = exp(y[i0, i1])
  define z: f32[2, 4] on cpu
    for i0: 2, i1: 4 = w[i0, i1]
  return z
""",
    "a loop over nothing reads it": """
  define z: f32[3, 0] on cpu
    reduce sum for i0: 3, i1: 0 over r0: 4 = y[i0, r0]
  return z
""",
    "it is read where a mask holds": """
  define z: f32[3, 4] on cpu
    for i0: 3, i1: 4 = masked(lt(index(i0), i64(2)), y[i0, i1], f32(0.0))
  return z
""",
    "it is read where data says": """
  input m: bool[3] on cpu
  define z: f32[3, 4] on cpu
    for i0: 3, i1: 4 = masked(m[i0], y[i0, i1], f32(0.0))
  return z
""",
}
KEPT = {
    "it is a result": "  return y\n",
    "all of it is read, as one row": """
  define z: f32[12] on cpu
    for i0: 12 = exp(y[i0 // 4, i0 % 4])
  return z
""",
    "all is read for each of others": """
  define z: f32[4, 3, 7] on cpu
    for i0: 4, i1: 3, i2: 7 = exp(y[i1, i0])
  return z
""",
    "it is summed up": """
  define z: f32[3] on cpu
    reduce sum for i0: 3 over r0: 4 = y[i0, r0]
  return z
""",
    "it is a part of what is put together": """
  define z: f32[8, 4] on cpu
    for i0: 8, i1: 4 = masked(logical_and(ge(index(i0), i64(3)), lt(index(i0), i64(8))), x[i0 - 3, i1], masked(logical_and(ge(index(i0), i64(0)), lt(index(i0), i64(3))), y[i0, i1], f32(0.0)))
  return z
""",  # noqa: E501  # the text of a graph has a line for each definition
    "a call takes it": """
  define z: f32[3, 4] on cpu
    call out aten::exp.out(y)
  return z
""",
}


def run(graph, n):
    x, given = torch.arange(20.0).reshape(5, 4), []
    for each in graph.inputs:
        given.append({"x": x, "n": n}.get(each.name, torch.zeros(3, dtype=torch.bool)))
    program = plan(graph, options=SchedulerOptions(verify=True)).program
    return load_python(render_python(program))(given)


@pytest.mark.parametrize("text", LOST.values(), ids=LOST)
def test_checks_that_nothing_would_make_are_kept(text):
    graph = graph_of(text)
    kept = keep_checks(graph)
    assert len(kept.checks) == 1
    verify(kept)
    assert parse_graph(print_graph(kept)) == kept
    run(graph, GOOD)
    with pytest.raises(IndexError):
        run(graph, BAD)


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_is_read_as_a_whole_is_checked_once(text):
    graph = graph_of(text)
    assert keep_checks(graph) is graph
    run(graph, GOOD)
    with pytest.raises(IndexError):
        run(graph, BAD)


def test_one_check_serves_what_is_read_at_the_same_indices():
    graph = graph_of("""
  define w: f32[3, 4] on cpu
    for i0: 3, i1: 4 = exp(x[checked(n[i0], 5), i1])
  define z: f32[2, 4] on cpu
    for i0: 2, i1: 4 = add(y[i0, i1], w[i0, i1])
  return z
""")
    (check,) = keep_checks(graph).checks
    assert print_graph(keep_checks(graph)).count("reduce max") == 1
    assert f"  check {check}\n" in print_graph(keep_checks(graph))
    whole = graph_of("""
  define w: f32[3, 4] on cpu
    for i0: 3, i1: 4 = exp(x[checked(n[i0], 5), i1])
  define z: f32[2, 4] on cpu
    for i0: 2, i1: 4 = y[i0, i1]
  return z, w
""")
    assert not keep_checks(whole).checks


def test_a_division_that_nothing_reads_raises():
    graph = graph_of("""
  define z: i64[3] on cpu
    for i0: 3 = floordiv(i64(7), n[i0])
  return y
""")
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        run(graph, torch.tensor([1, 0, 2]))


FOREIGN = HEAD.replace(
    "  define y", "  define before: f32[5, 4] on cpu\n    call new user::op(x)\n  define y"
)


@pytest.mark.parametrize("combine", [False, True])
def test_what_may_raise_stays_before_and_behind_calls_that_are_not_torchs(combine):
    graph = parse_graph(
        FOREIGN.lstrip()
        + """
  define after: f32[5, 4] on cpu
    call new user::op(before)
  define z: f32[3, 4] on cpu
    for i0: 3, i1: 4 = add(y[i0, i1], after[i0, i1])
  define m: f32[3, 4] on cpu
    for i0: 3, i1: 4 = x[checked(n[i0], 5), i1]
  return z, m
""".lstrip("\n")
    )
    program = plan(graph, options=SchedulerOptions(verify=True, combine_launches=combine)).program
    steps = [each for each in program.steps if isinstance(each, CallExtern | Launch)]
    checking = {each.name for each in program.kernels if "checked" in print_kernel(each)}
    kinds = [
        "call" if isinstance(each, CallExtern) else ("check" if each.kernel in checking else "loop")
        for each in steps
    ]
    assert kinds.index("check") > kinds.index("call")
    calls = [n for n, kind in enumerate(kinds) if kind == "call"]
    assert "check" in kinds[calls[0] + 1 : calls[1]]
    assert "check" in kinds[calls[1] + 1 :]
    assert "check" not in kinds[: calls[0]]
