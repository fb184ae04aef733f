"""Device functions of random numbers; generated kernels call them as `device`'s.

They round as ATen's kernels of distributions do on a GPU, whose own sines, cosines, logarithms and
exponentials of float32 these take.
"""

# Device functions are compiled by Triton and have no Python types.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-untyped-call"
# mypy: disable-error-code="no-any-return, assignment, unused-ignore"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _words(key, counter, subsequence):
    return tl.philox(
        key,
        counter.to(tl.uint32),
        (counter >> 32).to(tl.uint32),
        subsequence.to(tl.uint32),
        (subsequence >> 32).to(tl.uint32),
    )


@triton.jit
def philox(key, counter, subsequence, lane):
    """A word of Philox-4x32-10, as `plait_utils.philox.philox` computes it."""
    words = _words(key, counter, subsequence)
    low = tl.where(lane == 0, words[0], words[1])
    high = tl.where(lane == 2, words[2], words[3])
    return tl.where(lane < 2, low, high).to(tl.int64)


@triton.jit
def _first_of_fours(value):
    """[..., 4 * n] to [..., n]: of each four neighbours the first, where they differ."""
    if len(value.shape) == 0 or value.shape[-1] == 1:
        first = value
    else:
        rows: tl.constexpr = value.shape[:-1]
        even, _ = tl.split(value.reshape(rows + [value.shape[-1] // 2, 2]))  # noqa: RUF005
        first, _ = tl.split(even.reshape(rows + [value.shape[-1] // 4, 2]))  # noqa: RUF005
    return first


@triton.jit
def philox_in_fours(key, counter, subsequence, lane):
    """`philox` where four neighbours are the words of one counter, which is computed once."""
    if subsequence.shape[-1] < 4:
        found = philox(key, counter, subsequence, lane)
    else:
        words = _words(key, _first_of_fours(counter), _first_of_fours(subsequence))
        fours = tl.join(tl.join(words[0], words[2]), tl.join(words[1], words[3]))
        shape: tl.constexpr = fours.shape[:-3] + [4 * fours.shape[-3]]  # noqa: RUF005
        found = fours.reshape(shape).to(tl.int64)
    return found


@triton.jit
def _radius(u):
    if u.dtype == tl.float64:
        found = tl.sqrt(-2.0 * libdevice.log(u))
    else:
        found = tl.sqrt_rn(-2.0 * libdevice.log(u))
    return found


@triton.jit
def box_muller_sin(u, v):
    """As `plait_utils.philox_numbers.box_muller_sin`."""
    if v.dtype == tl.float64:
        sine = libdevice.sinpi(v)
    else:
        sine = libdevice.fast_sinf(v)
    return sine * _radius(u)


@triton.jit
def box_muller_cos(u, v):
    if v.dtype == tl.float64:
        cosine = libdevice.cospi(v)
    else:
        cosine = libdevice.fast_cosf(v)
    return cosine * _radius(u)


@triton.jit
def approximate_log(x):
    if x.dtype == tl.float64:
        found = libdevice.log(x)
    else:
        found = libdevice.fast_logf(x)
    return found


@triton.jit
def approximate_exp(x):
    if x.dtype == tl.float64:
        found = libdevice.exp(x)
    else:
        found = libdevice.fast_expf(x)
    return found
