"""Normal numbers and integers of torch's generators of GPUs, as functions of a generator's state.

They are made of the words of `plait_utils.philox` as ATen's kernels make them: normals by cuRAND's
Box-Muller transform (G. Box and M. Muller, *A note on the generation of random normal deviates*,
1958), integers by a remainder. Logarithms, sines and so on are the GPU's: what kernels compute
there equals eager's to the last bit where `plait_utils.philox_agreement` finds it so. Those of
torch, which are used elsewhere, round otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plait_utils.philox import STEP, UNIFORM, UNROLL, above_zero, philox, place

TURN = float(torch.tensor(2 * math.pi, dtype=torch.float32, device="cpu"))
"""As many radians as cuRAND takes a turn to be, in float32."""
LONG = 2**63 - 1
"""The bits of the largest int64."""
LARGEST_DIVISOR = 2**62
"""Of remainders by what is no power of two."""

_library: Any
_library = torch.library.Library("plait_philox", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's
_library.define(
    "normal(Tensor state, SymInt[] size, SymInt start, int threads, ScalarType dtype) -> Tensor"
)
_library.define(
    "integers(Tensor state, SymInt[] size, SymInt start, int threads, int words, int most,"
    " int base) -> Tensor"
)
_library.define("fma(Tensor x, Scalar y, Scalar z) -> Tensor")
_library.define("log(Tensor x) -> Tensor")
_library.define("exp(Tensor x) -> Tensor")


def box_muller_sin(u: Tensor, v: Tensor) -> Tensor:
    """sqrt(-2 log u) sin v: of float32 by radians, of float64 by half-turns."""
    return (-2 * u.log()).sqrt() * _radians(v).sin()


def box_muller_cos(u: Tensor, v: Tensor) -> Tensor:
    """The same with the cosine."""
    return (-2 * u.log()).sqrt() * _radians(v).cos()


def _radians(v: Tensor) -> Tensor:
    return v * math.pi if v.dtype is torch.float64 else v


def normal_at(
    position: Tensor, state: Tensor, start: int, threads: int, dtype: torch.dtype
) -> Tensor:
    """What `NORMAL` gives at positions, row by row."""
    at = place(position, threads, 1, UNROLL[dtype])
    seed, counter = state[0], (state[1] >> 2) + (start // STEP + at.round)

    def word(lane: Tensor | int) -> Tensor:
        return philox(seed, counter, at.subsequence, lane)

    if dtype is torch.float32:
        pair = at.number // 2 * 2
        u, y = above_zero(word(pair), dtype), word(pair + 1).to(dtype).double()
        v = (y * (TURN * 2.0**-32) + TURN * 2.0**-33).to(dtype)
    else:
        u, v = (above_zero(word(n) ^ word(n + 1) << 21, dtype) for n in (0, 2))
        v = v * 2
    return torch.where(at.number % 2 == 0, box_muller_sin(u, v), box_muller_cos(u, v))


def integers_at(
    position: Tensor, state: Tensor, start: int, threads: int, words: int, most: int, base: int
) -> Tensor:
    """What `INTEGERS` gives at positions, row by row."""
    at = place(position, threads, 1, 4 // words)
    seed, counter = state[0], (state[1] >> 2) + (start // STEP + at.round)
    drawn = torch.zeros_like(position)
    for turn in range(words):
        word = philox(seed, counter, at.subsequence, words * at.number + turn)
        drawn = drawn << 32 | word
    return remainder(drawn, most) + base


def remainder(bits: Tensor, most: int) -> Tensor:
    """Of numbers of 64 bits, which have no sign, divided by `most + 1`."""
    divisor = most + 1
    if not divisor & most:
        return bits & most
    if divisor > LARGEST_DIVISOR:
        raise ValueError(f"the divisor {divisor} is above {LARGEST_DIVISOR}")
    # As many times the divisor as half the number has, doubled, leave less than two of it.
    left = bits - ((bits >> 1 & LONG) // divisor << 1) * divisor
    return torch.where(left >= divisor, left - divisor, left)


def exponential(u: Tensor, rate: float, dtype: torch.dtype) -> Tensor:
    """Of uniform numbers of a dtype, as ATen's kernel makes them: never 0."""
    limit, scale = exponential_numbers(rate, dtype)
    logarithm: Tensor = torch.ops.aten.where.ScalarSelf(u >= 1 - limit, -limit, LOG(u))
    return logarithm * scale


def exponential_numbers(rate: float, dtype: torch.dtype) -> tuple[float, float]:
    """How far below 1 a number has no logarithm of its own, but as far below 0; and by what
    logarithms are multiplied."""
    one, divisor = (torch.tensor(n, dtype=dtype, device="cpu") for n in (-1.0, rate))
    return torch.finfo(dtype).eps / 2, float(one / divisor)


class Integers(NamedTuple):
    """What ATen's kernels of integers draw: `base` and the remainder of some words."""

    words: int
    most: int
    base: int = 0


_WIDE_RANGE = 2**28
"""From so many integers on two words are drawn."""
_DIGITS = {torch.float32: 24, torch.float64: 53, torch.bfloat16: 8, torch.float16: 11}
"""Of the integers that a dtype has without gaps."""
_INTEGRAL = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def integers_between(low: int, high: int, dtype: torch.dtype) -> Integers | None:
    """Of [low, high); None where a dtype lacks some, or ATen draws otherwise."""
    if dtype in _DIGITS:
        least, most = -(2 ** _DIGITS[dtype]), 2 ** _DIGITS[dtype]
    elif dtype in _INTEGRAL:
        limits = None if dtype is torch.bool else torch.iinfo(dtype)
        least, most = (limits.min, limits.max) if limits else (0, 1)
    else:
        return None
    if not least <= low < high <= most + 1:
        return None
    count = high - low
    if (count > LARGEST_DIVISOR and count & (count - 1)) or count > 2**63:
        return None
    return Integers(1 if count < _WIDE_RANGE else 2, count - 1, low)


def integers_unbounded(dtype: torch.dtype) -> Integers | None:
    """Of what is drawn without bounds; None where that is not known."""
    if dtype in _DIGITS:
        return Integers(2 if dtype is torch.float64 else 1, 2 ** _DIGITS[dtype])
    if dtype not in _INTEGRAL:
        return None
    most = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    return Integers(2 if dtype is torch.int64 else 1, most)


def _normal(
    state: Tensor, size: Sequence[int], start: int, threads: int, dtype: torch.dtype
) -> Tensor:
    position = torch.arange(math.prod(size), device=state.device)
    return normal_at(position, state, start, threads, dtype).view(list(size))


def _integers(
    state: Tensor, size: Sequence[int], start: int, threads: int, words: int, most: int, base: int
) -> Tensor:
    position = torch.arange(math.prod(size), device=state.device)
    return integers_at(position, state, start, threads, words, most, base).view(list(size))


def _fake_normal(
    state: Tensor, size: Sequence[int], start: int, threads: int, dtype: torch.dtype
) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def _fake_integers(
    state: Tensor, size: Sequence[int], start: int, threads: int, words: int, most: int, base: int
) -> Tensor:
    return torch.empty(size, dtype=torch.int64, device="meta")


def _fma(x: Tensor, y: float, z: float) -> Tensor:
    """By float64, where products of float32 are exact."""
    factor, term = (torch.tensor(n, dtype=x.dtype, device="cpu").double() for n in (y, z))
    return (x.double() * factor + term).to(x.dtype)


_EVERYWHERE = "CompositeExplicitAutograd"
_library.impl("normal", _normal, _EVERYWHERE)
_library.impl("normal", _fake_normal, "Meta")
_library.impl("integers", _integers, _EVERYWHERE)
_library.impl("integers", _fake_integers, "Meta")
_library.impl("fma", _fma, _EVERYWHERE)
_library.impl("log", torch.log, _EVERYWHERE)
_library.impl("exp", torch.exp, _EVERYWHERE)

NORMAL = torch.ops.plait_philox.normal.default
"""Normal numbers, float32 or float64, as ATen's kernels draw them from a state, `start` behind its
offset, of mean 0 and standard deviation 1."""
INTEGERS = torch.ops.plait_philox.integers.default
"""int64 `base` to `base + most`: the remainders of numbers of one word, or of two words."""
FMA = torch.ops.plait_philox.fma.default
"""x * y + z of float32 or float64, rounded once."""
LOG = torch.ops.plait_philox.log.default
"""The logarithm that kernels of distributions have: of float32, what a GPU's instruction gives."""
EXP = torch.ops.plait_philox.exp.default
"""The exponential of the same."""

DRAWN = frozenset((UNIFORM, NORMAL, INTEGERS))
"""What gives numbers of a state."""
MADE = frozenset((FMA, LOG, EXP))
"""What makes others of them."""
