"""Calls whose tensors hold so many positive numbers, and what eager gives for them."""

from __future__ import annotations

import pytest
import torch

VALUES = (2, 5, 0, 1, 17, 9, 1, 0)


def call_with(count):
    """Twenty numbers, of which so many are positive."""
    return torch.where(
        torch.arange(20) < count, torch.arange(20.0) / 2 + 0.5, -1.0 - torch.arange(20)
    )


def read(x):
    return int((x > 0).sum())


def outcome(run, x):
    """What a call gives or raises, with its input and the state of the generator afterwards."""
    torch.manual_seed(3)
    try:
        found = run(x)
    except Exception as error:
        found = type(error), str(error)
    return found, x, torch.get_rng_state()


def same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        same(list(found.items()), list(wanted.items()))
    elif isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, equal_nan=True)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted)
    else:
        assert found == wanted


def compare(compiled, program, values=VALUES):
    for count in values:
        x = call_with(count)
        same(outcome(compiled, x.clone()), outcome(program, x.clone()))
