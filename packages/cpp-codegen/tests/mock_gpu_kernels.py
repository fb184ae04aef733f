"""Kernels of programs for the GPU of mock_gpu.py, whose code is in mock_kernels.cpp."""

from __future__ import annotations

TAKEN = """\
  kernel taken(p0: read f32[s, 16], p1: read i64[s], p2: write f32[s]) sizes(s in 1..1000)
    for i0: s inner r0: 16
      inner t0 = p0[checked(p1[i0], s), r0]
      reduce t1 = sum %t0
      outer store p2[i0] = %t1
"""
ROWS = """\
  kernel rows(p0: read f32[s], p1: write f32[s, 16]) sizes(s in 1..1000)
    for i0: s, i1: 16
      outer store p1[i0, i1] = p0[i0]
"""
HALVE = """\
  kernel halve(p0: readwrite f32[s, 16]) sizes(s in 1..1000)
    for i0: s, i1: 16
      outer store p0[i0, i1] = mul(p0[i0, i1], f32(0.5))
"""
THROUGH = """\
  kernel through(p0: read f32[4096], p1: write f32[4096])
    for i0: 4096
      outer store p1[i0] = mul(p0[i0], f32(3.0))
"""
SPREAD = """\
  kernel spread(p0: read f32[4096], p1: write f32[64, 4096])
    for i0: 64, i1: 4096
      outer store p1[i0, i1] = p0[i1]
"""
MORE = """\
  kernel more(p0: readwrite f32[1024])
    for i0: 1024
      outer store p0[i0] = add(p0[i0], f32(1.0))
"""
TWICE = """\
  kernel twice(p0: read f32[4096], p1: write f32[4096])
    for i0: 4096
      outer store p1[i0] = mul(p0[i0], f32(2.0))
"""
