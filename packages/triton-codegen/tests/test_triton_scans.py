"""Scans of whole rows in registers; longer ones run as torch operations."""

from __future__ import annotations

import pytest
import torch
from triton_checks import reference, run

from plait_scheduler import parse_kernel
from plait_triton_codegen import UnsupportedKernelError, render_kernel


def agrees(kernel, x: torch.Tensor) -> None:
    for ours, theirs in zip(run(kernel, x), reference(kernel, x), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def running_sum(rows: int, columns: int, *, down: bool = False):
    at, shape = ("r0, i0", [columns, rows]) if down else ("i0, r0", [rows, columns])
    return parse_kernel(f"""kernel k(p0: read f32{shape}, p1: write f32{shape})
  for i0: {rows} inner r0: {columns}
    inner t0 = p0[{at}]
    scan t1: f64
      join add(%a0, %b0) along to(exp(%t0), f64)
    inner store p1[{at}] = sub(to(%t1, f32), %t0)""")


@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (5, 9), (1, 33), (40, 3), (3, 1)])
@pytest.mark.parametrize("down", [False, True])
def test_running_sums(rows, columns, down):
    shape = (columns, rows) if down else (rows, columns)
    agrees(running_sum(rows, columns, down=down), torch.randn(shape))


def test_what_is_carried_may_be_several_values():
    kernel = parse_kernel("""kernel k(p0: read f32[6, 9], p1: write f32[6, 9], p2: write i64[6, 9])
  for i0: 6 inner r0: 9
    scan t0: f32, t1: i64
      $0 = logical_or(ge(%b0, %a0), isnan(%b0))
      join pack(where($0, %b0, %a0), where($0, %b1, %a1)) along pack(p0[i0, r0], index(r0))
    inner store p1[i0, r0] = %t0
    inner store p2[i0, r0] = %t1""")
    x = torch.randn(6, 9)
    x[2, 3] = x[4, 0] = float("nan")
    agrees(kernel, x)


def test_rows_too_long_for_registers_are_refused():
    with pytest.raises(UnsupportedKernelError, match="too long"):
        render_kernel(running_sum(4, 100_000))
