"""Random numbers in kernels: of `plait_utils.counters` and `plait_utils.philox`, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton_checks import DEVICE, gpu_program, reference, run

from plait_scheduler import parse_kernel
from plait_triton_codegen import build, render_kernel
from plait_utils import DiskCache
from plait_utils.counters import BITS, NORMAL, UNIFORM
from plait_utils.philox import UNIFORM as DRAWN
from plait_utils.philox_numbers import EXP, FMA, INTEGERS, LOG
from plait_utils.philox_numbers import NORMAL as DRAWN_NORMALS

KEYS = (0, 1, -1, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


def _drawn(cache: DiskCache, function, key: int, *others: torch.Tensor) -> torch.Tensor:
    given = [torch.tensor([key]), *others]
    executable = build(gpu_program(function, *given), cache=cache)
    assert executable.metadata["launches"] == len(executable.kernels) == 1
    (found,) = executable(*(x.to(DEVICE) for x in given))
    return found.cpu()


@pytest.mark.parametrize("key", KEYS)
def test_bits(cache: DiskCache, key: int) -> None:
    found = _drawn(cache, lambda key: BITS(key, [7, 50]), key)
    assert torch.equal(found, BITS(torch.tensor([key]), [7, 50]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_uniform_numbers(cache: DiskCache, dtype: torch.dtype) -> None:
    found = _drawn(cache, lambda key: UNIFORM(key, [300], dtype), KEYS[-1])
    assert torch.equal(found, UNIFORM(torch.tensor([KEYS[-1]]), [300], dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers(cache: DiskCache, dtype: torch.dtype) -> None:
    found = _drawn(cache, lambda key: NORMAL(key, [300], dtype), KEYS[-1])
    expected = NORMAL(torch.tensor([KEYS[-1]]), [300], dtype)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_dropout_is_part_of_its_neighbours_kernel(cache: DiskCache) -> None:
    def program(key, x, y):
        kept = UNIFORM(key, x.shape, torch.float32) < 0.75
        return (x * y).relu() * kept * (1 / 0.75) + y

    x, y = torch.randn(40, 30), torch.randn(40, 30)
    found = _drawn(cache, program, 5, x, y)
    torch.testing.assert_close(found, program(torch.tensor([5]), x, y))


STATE = torch.tensor([-(2**60) - 5, 2**40 + 24])


def _of_state(cache: DiskCache, program) -> torch.Tensor:
    executable = build(gpu_program(program, STATE), cache=cache)
    assert executable.metadata["launches"] == len(executable.kernels) == 1
    (found,) = executable(STATE.to(DEVICE))
    return found.cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [64, 4096])
def test_normal_numbers_of_a_gpu_s_generator(
    cache: DiskCache, dtype: torch.dtype, threads: int
) -> None:
    def program(state):
        return FMA(DRAWN_NORMALS(state, [3, 200], 4, threads, dtype), 0.7, 0.3)

    found = _of_state(cache, program)
    torch.testing.assert_close(found, program(STATE), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("most", [9, 255, 2**28 - 2, 2**40, 2**62 - 2, 2**63 - 1])
@pytest.mark.parametrize("words", [1, 2])
def test_integers_of_a_gpu_s_generator(cache: DiskCache, words: int, most: int) -> None:
    def program(state):
        return INTEGERS(state, [3, 200], 4, 64, words, most, -7)

    assert torch.equal(_of_state(cache, program), program(STATE))


def test_functions_of_numbers_of_a_gpu_s_generator(cache: DiskCache) -> None:
    def program(state):
        return EXP(LOG(DRAWN(state, [500], 0, 64, 1, torch.float32)) * -0.5)

    torch.testing.assert_close(_of_state(cache, program), program(STATE), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("threads", "vector"), [(64, 1), (4096, 1), (64, 2), (64, 4), (32, 8)])
def test_numbers_of_a_gpu_s_generator(
    cache: DiskCache, dtype: torch.dtype, threads: int, vector: int
) -> None:
    def program(state):
        return DRAWN(state, [3, 200], 4, threads, vector, dtype)

    executable = build(gpu_program(program, STATE), cache=cache)
    assert executable.metadata["launches"] == len(executable.kernels) == 1
    (found,) = executable(STATE.to(DEVICE))
    assert torch.equal(found.cpu(), program(STATE))


def test_a_dropout_of_a_gpu_s_generator_is_part_of_its_neighbours_kernel(cache: DiskCache) -> None:
    def program(state, x, y):
        kept = DRAWN(state, [30, 40], 8, 256, 8, torch.float32).t() < 0.75
        return (x * y).relu() * kept * (1 / 0.75) + y, kept

    x, y = torch.randn(40, 30), torch.randn(40, 30)
    executable = build(gpu_program(program, STATE, x, y), cache=cache)
    assert executable.metadata["launches"] == 1
    found = executable(*(each.to(DEVICE) for each in (STATE, x, y)))
    for one, other in zip(found, program(STATE, x, y), strict=True):
        torch.testing.assert_close(one.cpu(), other)


def _dropout(state, x, threads, vector, p=0.75):
    return x * (DRAWN(state, x.shape, 4, threads, vector, torch.float32) < p) * (1 / p)


DROPOUTS = {
    "points": (lambda s, x: _dropout(s, x.relu(), 256, 4), (6, 100), True),
    "points, with their mask": (
        lambda s, x: (_dropout(s, x, 256, 8), DRAWN(s, x.shape, 4, 256, 8, torch.float32) < 0.75),
        (5, 1000),
        True,
    ),
    "one counter": (lambda s, x: _dropout(s, x + 1, 256, 4), (1, 4), False),
    "two counters": (lambda s, x: _dropout(s, x + 1, 256, 4), (1, 8), True),
    "rows": (lambda s, x: torch.softmax(_dropout(s, x, 256, 4), 1), (5, 200), True),
    "long rows": (lambda s, x: torch.softmax(_dropout(s, x, 512, 8), 1), (1, 32_760), True),
    "columns": (lambda s, x: _dropout(s, x, 256, 4).sum(0), (200, 64), False),
    "pairs": (lambda s, x: _dropout(s, x, 256, 2), (3, 50), False),
    "no neighbours": (lambda s, x: _dropout(s, x, 256, 1), (30, 100), False),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_neighbours_share_what_is_drawn(cache: DiskCache, name: str) -> None:
    function, shape, is_shared = DROPOUTS[name]
    x = torch.randn(shape)
    executable = build(gpu_program(function, STATE, x), cache=cache)
    sources = [executable.source, *map(str, executable.kernels)]
    assert any("philox_in_fours" in text for text in sources) == is_shared
    found, wanted = executable(STATE.to(DEVICE), x.to(DEVICE)), function(STATE, x)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize("wide", [False, True])
def test_masks_that_are_kept_take_no_precision_of_what_is_beside_them(wide: bool) -> None:
    def program(state, x):
        kept = DRAWN(state, x.shape, 4, 256, 8, torch.float32) < 0.75
        found = torch.nn.functional.gelu(x.float()) * kept
        return (found if wide else found.to(x.dtype)), kept

    (kernel,) = gpu_program(program, STATE, torch.randn(64, 64, dtype=torch.bfloat16)).kernels
    assert ("tl.erf" in render_kernel(kernel).text) == wide


NAMED = """\
kernel draw(p0: read i64[64], p1: write i64[64], p2: write i64[64])
  for i0: 64
    outer t0 = index(i0)
    outer store p1[i0] = %t0
    outer store p2[i0] = philox(p0[0], i64(0), %t0, index(i0 % 4))
"""
KEYED = """\
kernel draw(p0: read i64[64], p2: write i64[64])
  for i0: 64
    outer store p2[i0] = philox(p0[i0 // 4], i64(0), index(i0 // 4), index(i0 % 4))
"""


@pytest.mark.parametrize("text", [NAMED, KEYED], ids=["named", "keys"])
def test_neighbours_that_have_counters_or_keys_of_their_own_share_nothing(text: str) -> None:
    kernel, keys = parse_kernel(text), torch.arange(64)
    for one, other in zip(run(kernel, keys), reference(kernel, keys), strict=True):
        assert torch.equal(one, other)
