"""Numbers of torch's generators of GPUs: published ones, and those of kernels, step by step."""

from __future__ import annotations

import pytest
import torch
from philox_threads import THREADS, WORD, threads

from plait_utils import philox_agreement
from plait_utils.philox import UNIFORM, _signed, advance, neighbours, philox, take
from plait_utils.philox_agreement import BY_FUNCTIONS, Kind, agrees, dropout_scale


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (WORD, WORD), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_words_are_those_that_its_authors_publish(counter, key, expected):
    seed, low, high = (
        torch.tensor(_signed(first | second << 32))
        for first, second in (key, counter[:2], counter[2:])
    )
    assert tuple(int(philox(seed, low, high, lane)) for lane in range(4)) == expected


def distribution(count: int, dtype: torch.dtype, seed: int, offset: int) -> torch.Tensor:
    """As `distribution_elementwise_grid_stride_kernel` draws."""
    made = torch.full((count,), -1.0, dtype=dtype)
    unroll = 2 if dtype is torch.float64 else 4
    for total, index, thread in threads(count, seed, offset):
        rounded = ((count - 1) // (total * unroll) + 1) * total * unroll
        for linear in range(index, rounded, total * unroll):
            drawn = thread.doubles() if dtype is torch.float64 else thread.floats()
            for turn, number in enumerate(drawn):
                if linear + total * turn < count:
                    made[linear + total * turn] = number
    return made


def vectors(count: int, vector: int, seed: int, offset: int) -> torch.Tensor:
    """As `fused_dropout_kernel_vec` draws."""
    made = torch.full((count,), -1.0)
    for total, index, thread in threads(count, seed, offset):
        for linear in range(index * vector, count, total * vector):
            drawn = [number for _ in range(-(-vector // 4)) for number in thread.floats()]
            made[linear : linear + vector] = torch.tensor(drawn[:vector])
    return made


SEED, OFFSET = 0x1234_5678_9ABC_DEF0, 2**34 + 12
STATE = torch.tensor([SEED, OFFSET - 8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 3, 255, 257, 1000, 5 * THREADS + 17])
def test_numbers_of_a_distribution(count, dtype):
    found = UNIFORM(STATE, [count], 8, THREADS, 1, dtype)
    assert torch.equal(found, distribution(count, dtype, SEED, OFFSET))


@pytest.mark.parametrize("vector", [2, 4, 8])
@pytest.mark.parametrize("count", [8, 264, 1000, 17 * THREADS + 24])
def test_numbers_of_a_dropout(count, vector):
    found = UNIFORM(STATE, [2, count // 2], 8, THREADS, vector, torch.float32)
    assert torch.equal(found.flatten(), vectors(count, vector, SEED, OFFSET))


def test_how_far_generators_are_moved_on():
    assert [advance(count, 512, 4) for count in (1, 2048, 2049, 6000)] == [4, 4, 8, 12]
    assert [advance(count, 512, 2) for count in (1, 1024, 1025)] == [4, 4, 8]


def test_a_state_is_taken_once(monkeypatch):
    class Generator:
        offset = 12

        def get_offset(self):
            return self.offset

        def set_offset(self, offset):
            self.offset = offset

        def initial_seed(self):
            return 2**64 - 3

    generator = Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (None, generator))
    assert [take(1, 8), take(1, 4)] == [(-3, 12), (-3, 20)]
    assert generator.offset == 24


def test_neighbours_are_as_many_as_vectors_hold():
    found = [neighbours(count, torch.float32) for count in (24, 12, 6, 5)]
    assert found == [4, 4, 2, 1]
    wide = [neighbours(24, dtype) for dtype in (torch.float64, torch.bfloat16, torch.float16)]
    assert wide == [2, 8, 8]


def test_what_could_not_be_compared_is_asked_again(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(philox_agreement, "_key", lambda index, kinds: f"a GPU {len(kinds)}")
    full = torch.OutOfMemoryError("no memory")

    def fails(kind, device, compute):
        raise full

    def known(kinds=frozenset(Kind)):
        return philox_agreement._known(7, kinds, None)

    philox_agreement.forget()
    with monkeypatch.context() as patch:
        patch.setattr(philox_agreement, "differing", fails)
        assert known() == frozenset()
    monkeypatch.setattr(philox_agreement, "differing", lambda kind, device, compute: None)
    assert known() == frozenset(Kind)
    monkeypatch.setattr(philox_agreement, "differing", fails)
    philox_agreement.forget()
    assert known() == frozenset(Kind)  # by the disk cache
    assert known(frozenset({Kind.NORMAL})) == frozenset()  # which keeps each by itself
    philox_agreement.forget()


def test_scales_are_as_wide_as_the_kernels():
    assert dropout_scale(0.9, torch.float64) == (0.9, 1 / 0.9)
    kept, scale = dropout_scale(0.9, torch.bfloat16)
    assert kept == float(torch.tensor(0.9))
    assert scale == float(torch.tensor(1 / kept))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_agrees():
    assert not any(agrees(kind, torch.device("cuda", 0)) for kind in Kind)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_this_gpu_draws_what_is_known():
    device = torch.device("cuda", 0)
    assert {kind for kind in Kind if agrees(kind, device)} == set(Kind) - BY_FUNCTIONS
