"""Device functions that generated kernels call: what `triton.language` does not have.

Generated sources import this module; nothing else does, because it imports triton. Under
Triton's interpreter the functions that need libdevice are replaced by equal ones over
numpy (`plait_triton_codegen.interpreted`).
"""

# Device functions are compiled by Triton and have no Python types.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-untyped-call"
# mypy: disable-error-code="no-any-return, assignment, unused-ignore"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda, libdevice

from plait_triton_codegen.device_bytes import to_f8e4m3fn, to_f8e5m2  # noqa: F401
from plait_triton_codegen.device_draws import (  # noqa: F401
    approximate_exp,
    approximate_log,
    box_muller_cos,
    box_muller_sin,
    philox,
    philox_in_fours,
)
from plait_triton_codegen.device_sorts import (  # noqa: F401
    least_of_pairs,
    least_of_rows,
    sorted_pairs,
    sorted_rows,
)


@triton.jit
def expm1(x):
    return libdevice.expm1(x)


@triton.jit
def log10(x):
    return libdevice.log10(x)


@triton.jit
def log1p(x):
    return libdevice.log1p(x)


@triton.jit
def tan(x):
    return libdevice.tan(x)


@triton.jit
def asin(x):
    return libdevice.asin(x)


@triton.jit
def acos(x):
    return libdevice.acos(x)


@triton.jit
def atan(x):
    return libdevice.atan(x)


@triton.jit
def atan2(y, x):
    return libdevice.atan2(y, x)


@triton.jit
def sinh(x):
    return libdevice.sinh(x)


@triton.jit
def cosh(x):
    return libdevice.cosh(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)


@triton.jit
def asinh(x):
    return libdevice.asinh(x)


@triton.jit
def acosh(x):
    return libdevice.acosh(x)


@triton.jit
def atanh(x):
    return libdevice.atanh(x)


@triton.jit
def erfc(x):
    return libdevice.erfc(x)


@triton.jit
def lgamma(x):
    return libdevice.lgamma(x)


@triton.jit
def trunc(x):
    return libdevice.trunc(x)


@triton.jit
def round_even(x):
    return libdevice.nearbyint(x)


@triton.jit
def copysign(x, sign):
    return libdevice.copysign(x, sign)


@triton.jit
def hypot(x, y):
    return libdevice.hypot(x, y)


@triton.jit
def power(x, y):
    return libdevice.pow(x, y)


@triton.jit
def fmod(x, y):
    return libdevice.fmod(x, y)


@triton.jit
def fast_exp(x):
    """Within 2 ulp plus that of x * log2(e); 0 instead of subnormal numbers."""
    return libdevice.fast_expf(x)


@triton.jit
def fast_divide(x, y):
    """Within 2 ulp for |y| up to 2^126, 0 beyond."""
    return libdevice.fast_dividef(x, y)


@triton.jit
def dot(a, b, sums, precision: tl.constexpr):
    """sums + a @ b, in f32; `precision` is that of f32 operands."""
    return tl.dot(a, b, sums, input_precision=precision)


@triton.jit
def dot_of_bytes(a, b, sums, most: tl.constexpr):
    """The same of floats of 8 bits; tensor cores of sm_90 add `most` products with fewer bits."""
    return tl.dot(a, b, sums, max_num_imprecise_acc=most)


@triton.jit
def grouped(place, rows, columns, group: tl.constexpr):
    """The row and the column of blocks that a program computes: `group` rows of them, column by
    column, then the next rows. Programs that run side by side then read few rows and columns."""
    first = place // (group * columns) * group
    height = tl.minimum(rows - first, group)
    place = place % (group * columns)
    return first + place % height, place // height


@triton.jit
def rows_of_group(ends, block, rows, count: tl.constexpr, padded: tl.constexpr, size: tl.constexpr):
    """The group of a block of `size` rows, its first row, and the row behind the group, or no rows
    where there is no such block: groups end where `ends` tells, the last one with all rows, and
    each begins with a block. `padded` is a power of two not below `count`."""
    number = tl.arange(0, padded)
    end = tl.load(ends + number, number < count - 1, 0).to(tl.int32)
    end = tl.where(number < count - 1, tl.minimum(tl.maximum(end, 0), rows), rows)
    start = tl.load(ends + number - 1, (number > 0) & (number < count), 0).to(tl.int32)
    start = tl.where(number < count, tl.minimum(tl.maximum(start, 0), rows), rows)
    blocks = tl.cdiv(tl.maximum(end - start, 0), size)
    upto = tl.cumsum(blocks, 0)
    group = tl.sum((upto <= block).to(tl.int32), 0)
    is_it = number == group
    first = tl.sum(tl.where(is_it, start + (block - (upto - blocks)) * size, 0), 0)
    behind = tl.sum(tl.where(is_it, end, 0), 0)
    return tl.minimum(group, count - 1), first, behind


@triton.jit
def terms_of_group(ends, group, terms):
    """The first term of a group and the one behind it: groups end where `ends` tells, and begin
    where the one before ends."""
    start = tl.load(ends + group - 1, group > 0, 0).to(tl.int32)
    end = tl.load(ends + group).to(tl.int32)
    start = tl.minimum(tl.maximum(start, 0), terms)
    return start, tl.minimum(tl.maximum(end, 0), terms)


@triton.jit
def fast_reciprocal(x):
    """Within 1 ulp; 0 instead of subnormal numbers."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def in_branch(number, instruction: tl.constexpr):
    """`number` in 32 bits, by an instruction that no optimization moves out of the branch that it
    is in, since those of others are different texts: so the branch stays, and what it names."""
    return tl.inline_asm_elementwise(
        instruction,
        "=r,r",
        [tl.cast(number, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait_for_earlier():
    """Of a kernel that is launched when the programs of the one before have ended: waits until what
    these wrote can be read.

    The one before could let it start earlier, while some of its programs run: but then those of the
    next gather where there is room first. An H200 took 375 us for a batch normalization of 256
    images so, 322 as it is, and 327 without; for all columns' sums of 16384 rows 34, 34 and 37."""
    cuda.gdc_wait()


if triton.knobs.runtime.interpret:
    from plait_triton_codegen.interpreted import *  # noqa: F403  # replaces those above


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def fast_sigmoid(x):
    return fast_divide(tl.cast(1.0, tl.float32), 1.0 + fast_exp(-x))


@triton.jit
def fast_tanh(x):
    """Relative error below 1e-5."""
    whole = 1.0 - fast_divide(tl.cast(2.0, tl.float32), fast_exp(2.0 * x) + 1.0)
    return tl.where(tl.abs(x) < 0.04, x - x * x * x * 0.33333334, whole)


@triton.jit
def bounded_tanh(x, factor):
    """tanh(x) within 3e-7, where `factor` is 2 * log2(e) times what x is still to be multiplied
    by. Small results have no more digits than 1 has."""
    return tl.fma(fast_reciprocal(tl.exp2(x * factor) + 1.0), -2.0, 1.0)


@triton.jit
def one_plus_erf(x):
    """1 + erf(x) with an absolute error below 4e-7: Abramowitz and Stegun, 7.1.26."""
    size = tl.abs(x)
    t = fast_divide(tl.cast(1.0, tl.float32), 1.0 + 0.3275911 * size)
    series = 1.061405429 * t - 1.453152027
    series = series * t + 1.421413741
    series = series * t - 0.284496736
    tail = (series * t + 0.254829592) * t * fast_exp(-size * size)
    return tl.where(x < 0, tail, 2.0 - tail)


@triton.jit
def share(part, whole):
    """part / whole for 0 <= part <= whole, where whole is at least 1 and the same along a row: by
    its reciprocal and an exact remainder (P. Markstein: IA-64 and Elementary Functions, 2000)."""
    inverse = tl.div_rn(1.0, whole)
    quotient = part * inverse
    return tl.fma(tl.fma(-quotient, whole, part), inverse, quotient)


@triton.jit
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def signbit(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def remainder(a, b):
    """Of floats, with the sign of `b`."""
    mod = fmod(a, b)
    return tl.where((mod != 0) & ((b < 0) != (mod < 0)), mod + b, mod)


@triton.jit
def floor_divide(a, b):
    """Of floats, as ATen's floor_divide: exact where a / b alone would round up."""
    mod = fmod(a, b)
    quotient = (a - mod) / b
    quotient = tl.where((mod != 0) & ((b < 0) != (mod < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    whole = tl.where(quotient != 0, whole, copysign(quotient * 0.0, a / b))
    return tl.where(b == 0, a / b, whole)


@triton.jit
def floor_divide_int(a, b):
    quotient = a // b
    rest = a - quotient * b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def remainder_int(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floor_index(a, divisor):
    """`a // divisor` rounded down, for a positive divisor and any sign of `a`."""
    quotient = a // divisor
    return tl.where(a - quotient * divisor < 0, quotient - 1, quotient)


@triton.jit
def wrap_index(a, divisor):
    """`a % divisor` in [0, divisor), for a positive divisor and any sign of `a`."""
    rest = a % divisor
    return tl.where(rest < 0, rest + divisor, rest)


@triton.jit
def power_int(base, exponent):
    """By repeated squaring; a negative exponent gives 0 but for bases 1 and -1, as ATen."""
    result = base * 0 + 1
    square = base
    left = tl.where(exponent < 0, exponent & 1, exponent)
    for _ in range(base.dtype.primitive_bitwidth):
        result = tl.where((left & 1) != 0, result * square, result)
        square = square * square
        left = left >> 1
    unit = (base == 1) | (base * base == 1)
    return tl.where((exponent < 0) & (unit == 0), result * 0, result)


@triton.jit
def shift_left(a, bits):
    limit: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (bits >= 0) & (bits < limit)
    return tl.where(inside, a << tl.where(inside, bits, bits * 0), a * 0)


@triton.jit
def shift_right(a, bits):
    limit: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (bits >= 0) & (bits < limit)
    if a.dtype.is_int_signed():
        return a >> tl.where(inside, bits, bits * 0 + (limit - 1))
    else:
        return tl.where(inside, a >> tl.where(inside, bits, bits * 0), a * 0)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def row_max(value):
    """[X, R] to [X, 1]; NaN if any element is."""
    return tl.reduce(value, 1, _larger, keep_dims=True)


@triton.jit
def row_min(value):
    """[X, R] to [X, 1]; NaN if any element is."""
    return tl.reduce(value, 1, _smaller, keep_dims=True)


@triton.jit
def row_prod(value):
    """[X, R] to [X, 1]."""
    return tl.reduce(value, 1, _product, keep_dims=True)


@triton.jit
def keep_larger(a, i, b, j):
    """Of two elements with positions the larger, NaN above all; the first of equals."""
    wins = (a > b) | ((a != a) & (b == b))
    ties = (a == b) | ((a != a) & (b != b))
    keep = wins | (ties & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def keep_smaller(a, i, b, j):
    """Of two elements with positions the smaller, NaN below all; the first of equals."""
    wins = (a < b) | ((a != a) & (b == b))
    ties = (a == b) | ((a != a) & (b != b))
    keep = wins | (ties & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def row_argmax(value, position):
    """[X, R] values and positions to [X, 1] positions of the first largest."""
    _, found = tl.reduce((value, position), 1, keep_larger, keep_dims=True)
    return found


@triton.jit
def row_argmin(value, position):
    """[X, R] values and positions to [X, 1] positions of the first smallest."""
    _, found = tl.reduce((value, position), 1, keep_smaller, keep_dims=True)
    return found


@triton.jit
def add_diagonals(pointer, weights, first, low, high, step: tl.constexpr):
    """Add the sum of each diagonal of a block to what is at `pointer`, `step` elements further for
    each place that its columns are ahead of its rows: at `first` those of the block's first
    element are, and from `low` on and below `high` any.

    A block of R by C has R + C - 1 diagonals. With each row turned around by its number, all
    elements of a column are of the same one, or of one that is a multiple of C away.
    """
    rows: tl.constexpr = weights.shape[0]
    columns: tl.constexpr = weights.shape[1]
    turns: tl.constexpr = (rows + columns - 2) // columns + 1
    lane = tl.arange(0, columns)
    place = lane[None, :] + tl.arange(0, rows)[:, None]
    turned = tl.gather(weights, place % columns, 1)
    for turn in tl.static_range(turns):
        part = tl.sum(tl.where(place // columns == turn, turned, 0.0), 0)
        ahead = first + lane - columns * turn
        inside = (ahead >= low) & (ahead < high)
        tl.atomic_add(pointer + ahead * step, part, inside, sem="relaxed")


@triton.jit
def heavy_and_light(program, programs):
    """The place of a program in an order from the most work to the least: of the first half as they
    come, of the second from the end. Programs that share a processor, which come one after another
    by rounds of processors, then have as much to do together as others have."""
    half = programs // 2
    return tl.where(program < half, program, programs - 1 - (program - half))


@triton.jit
def row_last(value):
    """[X, R] to [X, 1]: the last element of each row, to the bit."""
    last = tl.arange(0, value.shape[1])[None, :] == value.shape[1] - 1
    if value.dtype == tl.float64:
        bits = value.to(tl.int64, bitcast=True)
    elif value.dtype == tl.float32:
        bits = value.to(tl.int32, bitcast=True)
    elif value.dtype.is_floating():
        bits = value.to(tl.int16, bitcast=True)
    else:
        bits = value
    found = tl.sum(tl.where(last, bits, bits * 0), 1, keep_dims=True).to(bits.dtype)
    return found.to(value.dtype, bitcast=value.dtype.is_floating())


@triton.jit
def check_index(index, size, errors, inside):
    """`index` counted from the start and within `size`; reports others where `inside`.

    `errors` points to three i64: whether there was an error, the index, the size.
    """
    wrapped = tl.where(index < 0, index + size, index)
    wrong = ((wrapped < 0) | (wrapped >= size)) & inside
    place = tl.where(wrong, 0, 0)
    tl.store(errors + place, tl.full([], 1, tl.int64) + place, mask=wrong)
    tl.store(errors + 1 + place, index + place, mask=wrong)
    tl.store(errors + 2 + place, tl.full([], 0, tl.int64) + size + place, mask=wrong)
    return clamp_index(index, size)


@triton.jit
def clamp_index(index, size):
    """`index` counted from the start, within `size`."""
    wrapped = tl.where(index < 0, index + size, index)
    return tl.minimum(tl.maximum(wrapped, wrapped * 0), wrapped * 0 + (size - 1))
