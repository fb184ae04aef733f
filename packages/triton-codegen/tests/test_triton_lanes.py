"""Points that draw of one counter, which one program computes lane by lane."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton_checks import DEVICE, gpu_program, unchained

from plait_triton_codegen import build
from plait_utils import DiskCache
from plait_utils.philox import UNIFORM
from plait_utils.philox_numbers import FMA, INTEGERS, NORMAL

STATE = torch.tensor([-(2**60) - 5, 2**40 + 24])


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


def _check(cache: DiskCache, program, *others: torch.Tensor, lanes: int) -> None:
    """That a program is right, and loops over so many lanes; 0: that it does not."""
    executable = build(unchained(gpu_program(program, STATE, *others)), cache=cache)
    found = executable(*(x.to(DEVICE) for x in (STATE, *others)))
    wanted = program(STATE, *others)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=2e-6)
    loop = f"in tl.static_range({lanes}):"
    assert (loop in executable.source) == bool(lanes)
    assert lanes or "static_range" not in executable.source


@pytest.mark.parametrize("count", [129, 256, 257, 1024, 1999, 5 * 1024 + 17])
@pytest.mark.parametrize("threads", [64, 48, 33])
def test_normal_numbers(cache: DiskCache, count: int, threads: int) -> None:
    _check(
        cache,
        lambda state: FMA(NORMAL(state, [count], 8, threads, torch.float32), 2, 1),
        lanes=4,
    )


@pytest.mark.parametrize("count", [129, 1024, 1999])
def test_normal_numbers_of_float64_are_two_of_a_counter(cache: DiskCache, count: int) -> None:
    _check(cache, lambda state: NORMAL(state, [count], 8, 64, torch.float64), lanes=2)


@pytest.mark.parametrize("words", [1, 2])
def test_integers_and_uniform_numbers(cache: DiskCache, words: int) -> None:
    _check(cache, lambda s: INTEGERS(s, [1999], 8, 64, words, 9, 0), lanes=4 // words)
    _check(cache, lambda s: UNIFORM(s, [1999], 8, 64, 1, torch.float32), lanes=4)
    _check(cache, lambda s: UNIFORM(s, [1999], 8, 64, 1, torch.float64), lanes=2)


def test_what_is_computed_of_them_beside_others(cache: DiskCache) -> None:
    def program(state, x, y, bias):
        noise = NORMAL(state, [40, 50], 0, 64, torch.float32)
        other = NORMAL(state, [40, 50], 8, 64, torch.float64)
        return (x + 0.1 * noise).relu() * bias, y.t() + noise, noise.half(), other + noise

    x, y, bias = torch.randn(40, 50), torch.randn(50, 40), torch.randn(50)
    _check(cache, program, x, y, bias, lanes=4)


def test_rows_that_the_threads_do_not_divide(cache: DiskCache) -> None:
    def program(state, x):
        return x + NORMAL(state, [37, 61], 0, 48, torch.float32)

    _check(cache, program, torch.randn(37, 61), lanes=4)


def test_few_numbers_are_drawn_one_by_one(cache: DiskCache) -> None:
    _check(cache, lambda state: NORMAL(state, [127], 0, 64, torch.float32), lanes=0)


def test_neighbours_of_a_dropout_are_no_lanes(cache: DiskCache) -> None:
    _check(cache, lambda s: UNIFORM(s, [4096], 0, 64, 4, torch.float32), lanes=0)


def test_sums_of_rows_have_no_lanes(cache: DiskCache) -> None:
    def program(state):
        return NORMAL(state, [40, 50], 0, 64, torch.float32).sum(1)

    executable = build(gpu_program(program, STATE), cache=cache)
    (found,) = executable(STATE.to(DEVICE))
    torch.testing.assert_close(found.cpu(), program(STATE), rtol=1e-4, atol=1e-4)
    assert "static_range" not in executable.source
