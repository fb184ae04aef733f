"""Tensors of the caller's to which an operation gives another geometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from plait_bytecode_tracer import CompiledFunction

aten = torch.ops.aten


def add(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    torch.add(x, 1, out=out)
    return out * 2


def add_below_a_view(x: torch.Tensor, out: torch.Tensor) -> Any:
    view = out.view(-1)
    torch.sum(x, 0, out=out)
    return view.shape, out + 1


def largest(x: torch.Tensor, out: torch.Tensor) -> Any:
    return torch.max(x, 0, out=(out, torch.empty(0, dtype=torch.long)))


def operator(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    aten.mul.out(x, 2, out=out)
    return out + 1


def like_another(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.resize_as_(x)
    return out.zero_() + x


def strided(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    torch.as_strided_(out, (1, 2), (2, 1))
    return out + 1


def turned(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    aten.t_(out)
    return out + 1


RESIZED = [add, add_below_a_view, largest, operator, like_another]


def check(program: Callable[..., Any], out: Callable[[], torch.Tensor]) -> CompiledFunction:
    compiled = CompiledFunction(program, lambda module, *_: module.forward)
    x = torch.arange(6.0).reshape(2, 3)
    for _ in range(2):
        given, expected = out(), out()
        got, wanted = compiled(x, given), program(x, expected)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(given, expected)
        assert given.stride() == expected.stride()
    return compiled


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("program", RESIZED)
@pytest.mark.parametrize("size", [(0,), (1, 2)])
def test_it_is_resized(program, size):
    compiled = check(program, lambda: torch.zeros(size))
    assert len(compiled.breaks) == 1
    assert "GB0002" in compiled.breaks[0].code


@pytest.mark.parametrize("program", [strided, turned])
def test_it_looks_at_its_memory_in_another_way(program):
    assert check(program, lambda: torch.arange(4.0).reshape(2, 2)[:1]).breaks


@pytest.mark.parametrize("program", [add, operator])
def test_one_of_the_right_shape_breaks_nothing(program):
    assert not check(program, lambda: torch.zeros(3, 2).t()).breaks


def test_one_that_the_code_makes_may_be_resized():
    def program(x, y):
        out = torch.empty(0)
        torch.add(x, y, out=out)
        return out * 2

    assert not check(program, lambda: torch.ones(3)).breaks
