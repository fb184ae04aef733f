"""Random states in compiled programs: the kernels draw what eager draws, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import plait


def between(x: torch.Tensor, seed: int) -> Any:
    first = torch.rand(4) * x
    torch.manual_seed(seed)
    second = F.dropout(x, 0.5) * 2
    torch.manual_seed(seed + 1)
    return first, second, torch.rand(4) + x


def forked(x: torch.Tensor, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = torch.rand(4) * x
    return first, torch.rand(4) * 2, F.dropout(x, 0.3)


def repeated(x: torch.Tensor, seed: int) -> Any:
    first = torch.rand(4)
    state = torch.get_rng_state()
    second = F.dropout(x, 0.5)
    torch.set_rng_state(state)
    return first, second, F.dropout(x, 0.5), state


def unused(x: torch.Tensor, seed: int) -> Any:
    torch.rand(3)
    torch.manual_seed(5)
    torch.rand(3)
    torch.get_rng_state()
    return torch.rand(4) * x, x


def stream(function: Callable[..., Any], *, grad: bool) -> list[torch.Tensor]:
    """Results, gradients and the numbers that follow, over some calls."""
    torch.manual_seed(77)
    found: list[torch.Tensor] = []
    for seed in (3, 4, 5, 4):
        x = torch.arange(1.0, 5.0).requires_grad_(grad)
        results = function(x, seed)
        if grad:
            sum(each.sum() for each in results if each.requires_grad).backward()
            assert x.grad is not None
            found.append(x.grad)
        found += [*results, torch.rand(1)]
    return found


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [between, forked, repeated, unused])
def test_streams_are_those_of_eager(function: Callable[..., Any], grad: bool) -> None:
    compiled = plait.compile(function, fullgraph=True, options={"strict": True})
    for expected, given in zip(
        stream(function, grad=grad), stream(compiled, grad=grad), strict=True
    ):
        assert torch.equal(expected, given)
