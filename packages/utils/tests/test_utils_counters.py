"""The counter-based generator: its published numbers, and what it draws."""

from __future__ import annotations

import pytest
import torch

from plait_utils.counters import BITS, NORMAL, OPERATORS, PRECISION, UNIFORM, _philox


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (0, 0, 0x6CD10DF2FF1DAE59),
        ((1 << 64) - 1, 0xFFFFFFFF, 0xAB4FD7AD2C3F628B),
        (0x85A308D3243F6A88, 0x13198A2E, 0xF62A4C12DD7CE038),
    ],
)
def test_numbers_are_those_that_its_authors_publish(counter, key, expected):
    found = _philox(torch.tensor([key]), torch.tensor([_signed(counter)]))
    assert found.item() == _signed(expected)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_distributions(dtype):
    key, size = torch.tensor([-(5**27)]), (400, 500)
    uniform, normal = (op(key, size, dtype) for op in (UNIFORM, NORMAL))
    assert uniform.dtype == normal.dtype == dtype
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.double().mean() - 0.5) < 4e-3
    assert abs(uniform.double().var() - 1 / 12) < 1e-3
    assert abs(normal.double().mean()) < 1e-2
    assert abs(normal.double().std() - 1) < 1e-2
    inside = (normal.double().abs() < 1.959964).double().mean()
    assert abs(inside - 0.95) < 3e-3


def test_keys_and_positions_tell_numbers_apart():
    keys = [0, 1, 1 << 32, -1]
    drawn = torch.stack([BITS(torch.tensor([key]), [1000]) for key in keys])
    assert drawn.unique().numel() == drawn.numel()


def test_bits_are_set_half_of_the_time():
    bits = BITS(torch.tensor([11]), [1 << 14])
    shares = torch.stack([((bits >> n) & 1).double().mean() for n in range(64)])
    assert (shares - 0.5).abs().max() < 0.02


def test_operators_have_fake_results():
    key = torch.tensor([1], device="meta")
    for op in OPERATORS:
        rest = () if op is BITS else (torch.bfloat16,)
        assert op(key, [2, 3], *rest).shape == (2, 3)
