"""What kernels move and compute."""

from __future__ import annotations

import pytest

from plait_scheduler import KernelWork, kernel_work, parse_kernel

KERNELS = {
    "an element of each is read and written once": (
        "p0: read f32[8, 16], p1: write f32[8, 16]",
        "for i0: 8, i1: 16",
        ["outer store p1[i0, i1] = add(p0[i0, i1], mul(p0[i0, i1], p0[i0, i1]))"],
        KernelWork(512, 512, 2 * 128),
    ),
    "what is broadcast is read once, and what is between is not moved": (
        "p0: read bf16[16], p1: write f32[8, 16]",
        "for i0: 8, i1: 16",
        ["outer store p1[i0, i1] = exp(to(p0[i1], f32))"],
        KernelWork(32, 512, 128),
    ),
    "a row is read once, whatever runs over it": (
        "p0: read f32[8, 16], p1: write f32[8, 16]",
        "for i0: 8 inner r0: 16",
        [
            "inner t0 = p0[i0, r0]",
            "reduce t1 = max %t0",
            "inner store p1[i0, r0] = sub(%t0, %t1)",
        ],
        KernelWork(512, 512, 2 * 128),
    ),
    "overlapping windows are no more than there is": (
        "p0: read f32[17], p1: write f32[16]",
        "for i0: 16",
        ["outer store p1[i0] = add(p0[i0], p0[i0 + 1])"],
        KernelWork(68, 64, 16),
    ),
    "as many elements are gathered as there are points": (
        "p0: read i64[8], p1: read f32[1000, 4], p2: write f32[8, 4]",
        "for i0: 8, i1: 4",
        ["outer t0 = checked(p0[i0], 1000)", "outer store p2[i0, i1] = p1[%t0, i1]"],
        KernelWork(64 + 128, 128, 0),
    ),
    "a scatter reads what it adds to": (
        "p0: read i64[8], p1: read f32[8, 4], p2: readwrite f32[1000, 4]",
        "for i0: 4 inner r0: 8",
        ["inner t0 = checked(p0[r0], 1000)", "inner scatter add p2[%t0, i0] = p1[r0, i0]"],
        KernelWork(64 + 128 + 128, 128, 32),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_work(name: str) -> None:
    params, loops, statements, wanted = KERNELS[name]
    kernel = parse_kernel("\n".join([f"kernel k({params})", loops, *statements]))
    assert kernel_work(kernel) == wanted
    assert wanted.bytes_moved == wanted.bytes_read + wanted.bytes_written
