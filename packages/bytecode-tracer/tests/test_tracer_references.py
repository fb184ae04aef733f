"""Compiled functions hold no references to the program's tensors, weak ones neither."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from tracer_oracle import compiled

from plait_bytecode_tracer import wait_for_native_guards


def test_tensors_of_a_compiled_function_can_be_swapped() -> None:
    layer = torch.nn.Linear(2, 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        return layer(x) * 2

    made = compiled(program)
    x = torch.ones(2)
    for _ in range(6):
        made(x)
        wait_for_native_guards()
    for tensor in (x, *layer.parameters()):
        assert weakref.getweakrefs(tensor) == []
    torch.utils.swap_tensors(layer.weight, torch.nn.Parameter(torch.zeros(2, 2)))
    assert torch.equal(made(x), program(x))


def test_swapped_tensors_are_one_break() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        torch.utils.swap_tensors(x, y)
        return x * 2, y + 1

    made = compiled(program)
    x, y = torch.ones(2), torch.zeros(3)
    one, other = made(x, y)
    assert torch.equal(one, torch.zeros(3))
    assert torch.equal(other, torch.full((2,), 2.0))
    assert torch.equal(y, torch.ones(2))
    assert [found.code for found in made.breaks] == ["GB0002"]
