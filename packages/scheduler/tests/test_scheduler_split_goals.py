"""Single reductions are split otherwise than by rule where that is said, and are right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from plait_ir_lowering import parse_graph
from plait_scheduler import (
    SchedulerOptions,
    load_python,
    plan,
    print_program,
    render_python,
    split_pieces,
)
from plait_scheduler.split import split_goals

TEXT = """\
graph main()
  input x: f32[4096, 64] on cpu
  input y: f32[4096, 64] on cpu
  define a: f32[4096, 64] on cpu # from [["a"], []]
    for i0: 4096, i1: 64 = mul(x[i0, i1], y[i0, i1])
  define s: f32[64] on cpu # from [["s"], []]
    reduce sum for i1: 64 over i0: 4096 = a[i0, i1]
  define t: f32[64] on cpu # from [["t"], []]
    reduce sum for i1: 64 over i0: 4096 = x[i0, i1]
  return s, t
"""
GPU = SchedulerOptions.for_gpu()


@pytest.fixture(scope="module")
def graph():
    return parse_graph(TEXT)


def parts(program) -> dict[str, int]:
    """How many partial results there are of each."""
    sizes = {b.name: b.layout.size for b in program.buffers}
    return {name: size[-1].as_int() for name, size in sizes.items() if "_partial" in name}


def results(program) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(4096, 64, generator=generator) for _ in range(2)]
    return [*load_python(render_python(program))([*inputs]), *inputs]


@pytest.mark.parametrize("goals", ["", "s=0", "s=64", "s=512,t=128", "s=0,t=0"])
def test_reductions_aim_for_what_they_are_told_to(graph, goals) -> None:
    rule = parts(plan(graph, options=GPU).program)
    assert [*rule] == ["s_partial", "t_partial"]
    program = plan(graph, options=replace(GPU, split_goals=goals)).program
    told, found = split_goals(goals), parts(program)
    for name, usual in rule.items():
        goal = told.get(name.removesuffix("_partial"))
        if goal is None:
            assert found[name] == usual
        elif goal == 0:
            assert name not in found
        else:
            assert found[name] != usual
    s, t, x, y = results(program)
    wide = x.double()
    torch.testing.assert_close(s.double(), (wide * y).sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(t.double(), wide.sum(0), rtol=1e-4, atol=1e-4)


def test_goals_of_another_form_are_refused(graph) -> None:
    for wrong in ("s", "s=x", "s=1=2"):
        with pytest.raises(ValueError, match=r"."):
            plan(graph, options=replace(GPU, split_goals=wrong))


def test_each_split_reduction_is_a_graph_with_what_its_kernel_computes(graph) -> None:
    pieces = split_pieces(graph, plan(graph, options=GPU))
    assert [each.own for each in pieces] == ["s"] or {e.own for e in pieces} == {"s", "t"}
    for piece in pieces:
        by_rule = plan(piece.graph, options=GPU).program
        alone = plan(piece.graph, options=replace(GPU, split_goals=f"{piece.own}=0")).program
        assert f"{piece.own}_partial" in parts(by_rule)
        assert f"{piece.own}_partial" not in parts(alone)
        assert print_program(by_rule) != print_program(alone)


def test_deviations_are_split_with_the_sums_that_they_are_from() -> None:
    graph = parse_graph("""\
graph main()
  input x: f32[4, 1048576] on cpu
  define s: f32[4] on cpu # from [["s"], []]
    reduce sum for i0: 4 over i1: 1048576 = x[i0, i1]
  define m: f32[4] on cpu # from [["m"], []]
    for i0: 4 = div(s[i0], f32(1048576.0))
  define v: f32[4] on cpu # from [["v"], []]
    reduce sum for i0: 4 over i1: 1048576 = square(sub(x[i0, i1], m[i0]))
  return m, v
""")
    schedule = plan(graph, options=GPU)
    assert any("with a mean of their own" in each.reason for each in schedule.decisions)
    assert split_pieces(graph, schedule) == ()
