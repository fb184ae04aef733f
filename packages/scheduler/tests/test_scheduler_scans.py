"""Scans in kernels: fused with what is around them, in their order, as text and as Python."""

from __future__ import annotations

import pytest
import torch
from scheduler_checks import program_of

from plait_ir_lowering import (
    parse_graph,
)
from plait_scheduler import (
    Accumulate,
    ProgramError,
    ProgramSyntaxError,
    load_python,
    parse_kernel,
    plan,
    print_kernel,
    render_python,
    verify_kernel,
)


def running_sum(axis: int, *, rows: int = 6, columns: int = 9) -> str:
    shape = f"[{rows}, {columns}]"
    loops = f"i0: {rows}, i1: {columns}"
    return f"""graph main()
  input x: f32{shape} on cpu
  define e: f32{shape} on cpu
    for {loops} = exp(x[i0, i1])
  define c: f32{shape} on cpu
    scan i{axis} carry f64 for {loops} join add(%a0, %b0) give to(%a0, f32) = to(e[i0, i1], f64)
  define y: f32{shape} on cpu
    for {loops} = mul(c[i0, i1], x[i0, i1])
  return y
"""


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_around_a_scan_is_in_its_kernel(axis):
    x = torch.randn(6, 9)
    program = program_of(running_sum(axis), x, kernels=1)
    (kernel,) = program.kernels
    assert kernel.inner[0].extent.as_int() == x.shape[axis]


def test_a_scan_of_one_element_is_that_element():
    program = program_of(running_sum(1, columns=1), torch.randn(6, 1), kernels=1)
    assert not any(isinstance(s, Accumulate) for s in program.kernels[0].statements)


def test_an_empty_scan():
    program_of(running_sum(1, columns=0), torch.randn(6, 0), kernels=0)


def test_what_reads_a_scan_at_other_points_waits_for_it():
    text = running_sum(1).replace("= mul(c[i0, i1], x[i0, i1])", "= mul(c[i0, -i1 + 8], x[i0, i1])")
    program_of(text, torch.randn(6, 9), kernels=2)


def test_scans_along_different_axes_are_apart():
    text = running_sum(1).replace(
        "    for i0: 6, i1: 9 = mul(c[i0, i1], x[i0, i1])",
        "    scan i0 carry f32 for i0: 6, i1: 9 join maximum(%a0, %b0) give %a0 = c[i0, i1]",
    )
    program_of(text, torch.randn(6, 9), kernels=2)


def test_a_reduction_in_another_order_does_not_change_a_scans():
    """Reductions may run over merged and reordered rows; a scan's axis keeps its order."""
    text = """graph main()
  input x: f32[4, 3, 5] on cpu
  define s: f32[4] on cpu
    reduce sum for i0: 4 over r0: 5, r1: 3 = x[i0, r1, r0]
  define c: f32[4, 15] on cpu
    scan i1 carry f32 for i0: 4, i1: 15 join add(%a0, %b0) give %a0 = x[i0, i1 // 5, i1 % 5]
  return s, c
"""
    x = torch.randn(4, 3, 5)
    graph = parse_graph(text)
    program = plan(graph).program
    found = load_python(render_python(program))([x])
    torch.testing.assert_close(found[1], x.reshape(4, 15).cumsum(1))
    torch.testing.assert_close(found[0], x.sum((1, 2)))


KERNEL = """kernel k(p0: read f32[6, 9], p1: write f32[6, 9])
  for i0: 6 inner r0: 9
    scan t0: f32, t1: i64
      $0 = gt(%b0, %a0)
      join pack(where($0, %b0, %a0), where($0, %b1, %a1)) along pack(p0[i0, r0], index(r0))
    inner store p1[i0, r0] = %t0"""


def test_kernels_with_scans_print_and_read_back():
    kernel = parse_kernel(KERNEL)
    verify_kernel(kernel)
    assert print_kernel(kernel) == KERNEL


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pack(where($0, %b0, %a0), where($0, %b1, %a1))", "where($0, %b0, %a0)"),
        ("inner store", "outer store"),
        ("inner r0: 9", "inner r1: 9"),
        ("scan t0: f32, t1: i64", "scan t0: f32, t0: i64"),
        ("join pack(where($0, %b0, %a0)", "join pack(where($0, %b0, p0[i0, r0])"),
    ],
)
def test_broken_scans_are_refused(old, new):
    text = KERNEL.replace(old, new)
    with pytest.raises((ProgramError, ProgramSyntaxError)):
        verify_kernel(parse_kernel(text))
