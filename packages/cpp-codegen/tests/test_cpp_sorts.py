"""Programs that sort rows in kernels, as those of GPUs do, run as Python over ATen on a CPU."""

from __future__ import annotations

import torch

from plait_cpp_codegen import build
from plait_ir_lowering import parse_graph
from plait_scheduler import schedule

LEAST = """graph main()
  input x: i32[6, 8] on cpu
  define s: i32[6, 3] on cpu
    sort i1 of i32 for i0: 6, i1: 8 give %sorted0 = x[i0, i1]
  define y: i32[6] on cpu
    reduce sum for i0: 6 over r0: 3 = s[i0, r0]
  return y
"""


def test_kernels_that_sort_are_left_to_aten():
    executable = build(schedule(parse_graph(LEAST)))
    assert "a kernel that sorts rows" in (executable.fallback_reason or "")
    x = torch.randint(-50, 50, (6, 8), dtype=torch.int32)
    (y,) = executable(x)
    assert torch.equal(y, x.sort(1).values[:, :3].sum(1, dtype=torch.int32))
