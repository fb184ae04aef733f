"""Combined kernels that tests share."""

from __future__ import annotations

from collections.abc import Sequence

from plait_scheduler import AnyKernel, CombinedKernel, parse_kernel

UPDATE = """\
combined {name} of {members}{passed}
  kernel (p0: read {dtype}[points], p1: read {dtype}[points], p2: readwrite f32[points], p3: \
readwrite f32[points], p4: readwrite {dtype}[points], p5: read f32[]) sizes(points{limits})
    for i0: points
      outer t0 = to(p1[i0], f32)
      outer t1 = add(mul(p2[i0], f32(0.9)), mul(%t0, f32(0.1)))
      outer store p2[i0] = %t1
      outer t2 = add(mul(p3[i0], f32(0.999)), mul(mul(%t0, %t0), f32(0.001)))
      outer store p3[i0] = %t2
      outer store p4[i0] = {new}
"""
_NEW = "sub(to(p0[i0], f32), mul(div(%t1, add(sqrt(%t2), f32(1e-08))), p5[()]))"
TURNED = """\
combined turned of (), (), ()
  kernel (p0: read f32[1000, 768], p1: read f32[768, 1000], p2: write f32[768, 1000])
    for i0: 768, i1: 1000
      outer store p2[i0, i1] = add(p0[i1, i0], p1[i0, i1])
"""
TAKEN = """\
combined taken of (3), (0), (5), (1)
  kernel (p0: read f32[10, 8], p1: read i64[points], p2: write f32[points, 8]) \
sizes(points in 0..5)
    for i0: points, i1: 8
      outer store p2[i0, i1] = p0[checked(p1[i0], 10), i1]
"""


def updates(sizes: Sequence[int | str], dtype: str = "f32", passed: str = "") -> CombinedKernel:
    """One step of Adam with members of so many elements; `passed` are sizes that these are of."""
    known = [size for size in sizes if isinstance(size, int)]
    limits = "" if passed else f" in {min(known)}..{max(known)}"
    new = _NEW if dtype == "f32" else f"to({_NEW}, {dtype})"
    text = UPDATE.format(
        name=f"updates_{dtype}",
        members=", ".join(f"({size})" for size in sizes),
        passed=f" sizes({passed})" if passed else "",
        dtype=dtype,
        limits=limits,
        new=new,
    )
    kernel = parse_kernel(text)
    assert isinstance(kernel, CombinedKernel)
    return kernel


COUNTERS = """\
combined counters of {members}
  kernel (p0: read i64[], p1: write i64[])
    for
      outer store p1[()] = add(p0[()], i64(1))
"""


def counters(count: int) -> AnyKernel:
    """So many numbers, each with the next one."""
    return parse_kernel(COUNTERS.format(members=", ".join(["()"] * count)))


GPT2_BLOCK = (768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768)
COMPILED: dict[str, AnyKernel] = {
    "combined updates": updates(GPT2_BLOCK * 6),
    "combined updates bf16": updates(GPT2_BLOCK * 6, "bf16"),
    "combined updates of open sizes": updates(["16*s", 64, "32*s"], passed="s in 1..100000"),
    "combined 64-bit offsets": updates([2**31 + 2**20, 64, 2**32]),
    "combined transposes": parse_kernel(TURNED),
    "combined counters": counters(128),
}
"""Kernels that GPUs' compilers see."""
