"""Squared deviations from a mean, in chunks that are read once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from plait_ir_lowering import parse_graph
from plait_scheduler import SchedulerOptions, load_python, plan, render_python

OPTIONS = replace(
    SchedulerOptions.for_gpu(), split_points=8, min_parallel_points=4, longest_chunk=64
)


def statistics(size: tuple[int, ...], square: str = "mul($0, $0)", mean: str = "mean") -> str:
    """Mean and summed squared deviations for each channel of images."""
    n, c, h, w = size
    count = float(n * h * w)
    other = "" if mean == "mean" else f"  input {mean}: f32[{c}] on cpu\n"
    return f"""graph main()
  input x: bf16[{n}, {c}, {h}, {w}] on cpu
{other}  define v: f32[{n}, {c}, {h}, {w}] on cpu
    for i0: {n}, i1: {c}, i2: {h}, i3: {w} = to(x[i0, i1, i2, i3], f32)
  define total: f32[{c}] on cpu
    reduce sum for i0: {c} over r0: {n}, r1: {h}, r2: {w} = v[r0, i0, r1, r2]
  define mean: f32[{c}] on cpu
    for i0: {c} = div(total[i0], f32({count}))
  define squares: f32[{c}] on cpu
    $0 = sub(v[r0, i0, r1, r2], {mean}[i0])
    reduce sum for i0: {c} over r0: {n}, r1: {h}, r2: {w} = {square}
  return mean, squares
"""


@pytest.mark.parametrize("size", [(8, 2, 4, 8), (1, 3, 16, 32), (3, 2, 7, 9), (16, 1, 5, 5)])
@pytest.mark.parametrize("square", ["mul($0, $0)", "square($0)"])
def test_deviations_by_chunks_are_those_from_the_mean(size: tuple[int, ...], square: str) -> None:
    program = plan(parse_graph(statistics(size, square)), options=OPTIONS).program
    x = (1000 + torch.randn(size)).bfloat16()
    mean, squares = load_python(render_python(program))([x])
    exact = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=1e-6, atol=0)
    wanted = exact.var(1, unbiased=False) * exact.shape[1]
    torch.testing.assert_close(squares.double(), wanted, rtol=2e-4, atol=0)


def test_one_kernel_reads_the_elements() -> None:
    program = plan(parse_graph(statistics((8, 2, 4, 8))), options=OPTIONS).program
    readers = [k for k in program.kernels if any(str(p.dtype) == "bf16" for p in k.params)]
    assert len(program.kernels) == 2
    assert len(readers) == 1


def test_not_a_number_and_infinity_stay() -> None:
    program = plan(parse_graph(statistics((8, 2, 4, 8))), options=OPTIONS).program
    x = torch.randn(8, 2, 4, 8).bfloat16()
    x[3, 0, 1, 2] = float("inf")
    mean, squares = load_python(render_python(program))([x])
    assert mean[0].isinf()
    assert squares[0].isnan()
    assert mean[1].isfinite()
    assert squares[1].isfinite()


@pytest.mark.parametrize("longest_chunk", [0, 64])
def test_deviations_from_something_else_stay_as_they_are(longest_chunk: int) -> None:
    graph = parse_graph(statistics((8, 2, 4, 8), mean="center"))
    schedule = plan(graph, options=replace(OPTIONS, longest_chunk=longest_chunk))
    assert "mean of their own" not in schedule.explain()
    x, center = torch.randn(8, 2, 4, 8).bfloat16(), torch.tensor([0.5, -3.0])
    _, squares = load_python(render_python(schedule.program))([x, center])
    wanted = (x.double().transpose(0, 1).flatten(1) - center[:, None]).square().sum(1)
    torch.testing.assert_close(squares.double(), wanted, rtol=1e-5, atol=0)
