"""Device functions that round to floats of 8 bits; generated kernels call them as `device`'s.

They round to the nearest, ties to even, as ATen does: what is too large becomes infinity (e5m2), or
(e4m3fn) NaN or the largest number, by torch's version. Triton's own conversion gives the largest.
"""

# Device functions are compiled by Triton and have no Python types.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-untyped-call"
# mypy: disable-error-code="no-any-return, assignment, unused-ignore"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rounded(size, digits: tl.constexpr, bias: tl.constexpr):
    """The bits of a float with so many digits and such a bias, of those of an f32 without sign."""
    dropped: tl.constexpr = 23 - digits
    # below the least normal number an addition in f32 rounds: its last digit is that of the result
    shift: tl.constexpr = (127 - bias + dropped + 1) << 23
    one = tl.full([], shift, tl.int32)
    small = size.to(tl.float32, bitcast=True) + one.to(tl.float32, bitcast=True)
    odd = (size >> dropped) & 1
    normal = (size + ((bias - 127) << 23) + ((1 << (dropped - 1)) - 1) + odd) >> dropped
    return tl.where(size < ((128 - bias) << 23), small.to(tl.int32, bitcast=True) - shift, normal)


@triton.jit
def to_f8e4m3fn(x, large: tl.constexpr):
    """An f32 as a float of 8 bits, 3 of these digits: at most 448, more is what has the bits
    `large`."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    found = tl.where(size >= 0x43F00000, 0x7F, _rounded(size, 3, 7))  # 480
    found = tl.where((found == 0x7F) & (size <= 0x7F800000), large, found)
    return (found | ((bits >> 24) & 0x80)).to(tl.uint8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def to_f8e5m2(x):
    """An f32 as a float of 8 bits, 2 of these digits: at most 57344."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    large = tl.where(size > 0x7F800000, 0x7F, 0x7C)
    found = tl.where(size >= 0x47800000, large, _rounded(size, 2, 15))  # 65536
    return (found | ((bits >> 24) & 0x80)).to(tl.uint8).to(tl.float8e5, bitcast=True)
