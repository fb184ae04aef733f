"""Normal numbers and integers of torch's generators of GPUs, against kernels, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from philox_threads import THREADS, Thread, threads

from plait_utils import philox_agreement, philox_functions
from plait_utils.philox import advance
from plait_utils.philox_agreement import BY_FUNCTIONS, FLOATS, Kind, agrees, differing
from plait_utils.philox_numbers import (
    EXP,
    FMA,
    INTEGERS,
    LOG,
    NORMAL,
    Integers,
    exponential,
    integers_between,
    integers_unbounded,
    remainder,
)

SEED, OFFSET = 0x1234_5678_9ABC_DEF0, 2**34 + 12
STATE = torch.tensor([SEED, OFFSET - 8])
COUNTS = [1, 3, 255, 257, 1000, 5 * THREADS + 17]


def distribution(count: int, unroll: int, draw: Callable[[Thread], Sequence[float]]) -> list[float]:
    """As `distribution_elementwise_grid_stride_kernel` draws."""
    made: list[float] = [-1] * count
    for total, index, thread in threads(count, SEED, OFFSET):
        rounded = ((count - 1) // (total * unroll) + 1) * total * unroll
        for linear in range(index, rounded, total * unroll):
            for turn, number in enumerate(draw(thread)):
                if linear + total * turn < count:
                    made[linear + total * turn] = number
    return made


def _box_muller(u: float, turn: float) -> tuple[float, float]:
    radius = math.sqrt(-2 * math.log(u))
    return radius * math.sin(2 * math.pi * turn), radius * math.cos(2 * math.pi * turn)


def normals(thread: Thread) -> list[float]:
    x = [(word + 0.5) / 2**32 for word in thread.words()]
    return [*_box_muller(x[0], x[1]), *_box_muller(x[2], x[3])]


def double_normals(thread: Thread) -> list[float]:
    return list(_box_muller(*thread.doubles()))


@pytest.mark.parametrize("count", COUNTS)
def test_normal_numbers_are_those_of_box_and_muller(count):
    single = NORMAL(STATE, [count], 8, THREADS, torch.float32)
    wanted = torch.tensor(distribution(count, 4, normals), dtype=torch.float64)
    torch.testing.assert_close(single.double(), wanted, rtol=1e-5, atol=2e-6)
    double = NORMAL(STATE, [1, count], 8, THREADS, torch.float64)
    wanted = torch.tensor(distribution(count, 2, double_normals), dtype=torch.float64)
    torch.testing.assert_close(double[0], wanted, rtol=1e-12, atol=1e-12)


DIVISORS = [2, 10, 256, 2**28 - 1, 2**28, 2**31 + 1, 2**40 + 1, 2**61 - 1, 2**62, 2**63]


@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize("count", [1, 257, 5 * THREADS + 17])
def test_integers_are_remainders_of_words(count, divisor):
    def narrow(thread: Thread) -> list[int]:
        return [word % divisor - 5 for word in thread.words()]

    def wide(thread: Thread) -> list[int]:
        a, b, c, d = thread.words()
        return [(high << 32 | low) % divisor - 5 for high, low in ((a, b), (c, d))]

    for words, draw in ((1, narrow), (2, wide)):
        found = INTEGERS(STATE, [count], 8, THREADS, words, divisor - 1, -5)
        assert found.tolist() == distribution(count, 4 // words, draw)


@pytest.mark.parametrize("divisor", DIVISORS)
def test_remainders_have_no_sign(divisor):
    numbers = [0, 1, divisor - 1, divisor, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - divisor, 2**63 + 9]
    signed = [number - (number >> 63 << 64) for number in numbers]
    found = remainder(torch.tensor(signed), divisor - 1)
    assert found.tolist() == [number % divisor for number in numbers]


def test_divisors_that_are_too_large_are_refused():
    with pytest.raises(ValueError, match="above"):
        remainder(torch.tensor([1]), 2**62)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "expected"),
    [
        (0, 10, torch.int64, Integers(1, 9, 0)),
        (-5, 2**28 - 6, torch.int64, Integers(1, 2**28 - 2, -5)),
        (-5, 2**28 - 5, torch.int32, Integers(2, 2**28 - 1, -5)),
        (-(2**63), -1, torch.int64, None),
        (-(2**62), 2**62, torch.int64, Integers(2, 2**63 - 1, -(2**62))),
        (0, 2**62 + 1, torch.int64, None),
        (0, 256, torch.uint8, Integers(1, 255, 0)),
        (0, 257, torch.uint8, None),
        (0, 2, torch.bool, Integers(1, 1, 0)),
        (3, 3, torch.int64, None),
        (-256, 257, torch.bfloat16, Integers(1, 512, -256)),
        (0, 258, torch.bfloat16, None),
        (0, 2**24 + 1, torch.float32, Integers(1, 2**24, 0)),
        (0, 4, torch.complex64, None),
        (0, 4, torch.uint32, None),
    ],
)
def test_integers_of_a_dtype(low, high, dtype, expected):
    assert integers_between(low, high, dtype) == expected


def test_integers_without_bounds():
    found = [integers_unbounded(d) for d in (torch.int64, torch.int8, torch.bool, torch.float16)]
    assert found == [(2, 2**63 - 1, 0), (1, 127, 0), (1, 1, 0), (1, 2048, 0)]
    assert integers_unbounded(torch.uint16) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponential_numbers_are_above_zero(dtype):
    u = torch.tensor([1.0, 1 - torch.finfo(dtype).eps / 2, 0.5, 2.0**-33], dtype=dtype)
    found = exponential(u, 2.0, dtype)
    assert found[0] == found[1] == torch.finfo(dtype).eps / 4
    torch.testing.assert_close(found[2:], u[2:].log() / -2)


def test_sums_of_products_are_rounded_once():
    x = torch.tensor([1 + 2.0**-12, 3.0], dtype=torch.float32)
    found = FMA(x, 1 + 2.0**-12, -(1 + 2.0**-11))
    assert found.tolist() == [2.0**-24, 2 + 2.0**-12]
    torch.testing.assert_close(EXP(LOG(x)), x)


class _AsKernels:
    """What operators are taken to draw, and kernels to compute: the same, but for `change`."""

    def __init__(self, patch, change=lambda x: x, moved=0):
        patch.setattr(philox_functions, "threads_of", lambda device: THREADS)
        patch.setattr(philox_functions, "drawn", self.drawn)
        patch.setattr(philox_functions, "FLOATS", (torch.float32, torch.float64))
        self.change, self.moved, self.last = change, moved, None

    def drawn(self, draw, device):
        step = advance(len(self.last), THREADS, 2 if self.last.dtype is torch.float64 else 4)
        return self.change(self.last.clone()), step + self.moved

    def compute(self, function, state):
        (self.last,) = function(state)
        return (self.last,)


@pytest.mark.parametrize("kind", sorted(BY_FUNCTIONS, key=lambda kind: kind.name))
def test_what_kernels_compute_is_compared_to_the_bit(monkeypatch, kind):
    device = torch.device("cpu")
    assert differing(kind, device, _AsKernels(monkeypatch).compute) is None
    moved = _AsKernels(monkeypatch, moved=4)
    assert "moved on by 8, not 4" in str(differing(kind, device, moved.compute))

    def nudge(x):
        x[777] = x[777].nextafter(torch.tensor(9.0, dtype=x.dtype))
        return x

    assert "1 differ" in str(differing(kind, device, _AsKernels(monkeypatch, nudge).compute))
    assert differing(kind, device) is not None


def test_zeros_of_either_sign_differ(monkeypatch):
    monkeypatch.setitem(
        philox_functions._CASES,
        Kind.NORMAL,
        (lambda state, count, threads, dtype: torch.zeros(count, dtype=dtype), lambda x, g: x),
    )
    kernels = _AsKernels(monkeypatch, torch.neg)
    assert "1000 differ" in str(differing(Kind.NORMAL, torch.device("cpu"), kernels.compute))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_without_kernels_functions_do_not_agree():
    device = torch.device("cuda", 0)
    assert not any(agrees(kind, device) for kind in BY_FUNCTIONS)


def test_each_kind_of_float64_is_one_of_functions():
    assert philox_agreement.DOUBLES.keys() | set(philox_agreement.DOUBLES.values()) == BY_FUNCTIONS
    assert torch.float64 in FLOATS
