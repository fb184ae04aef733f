"""Hooks that are taken away while the module runs; gradients that tensors keep: one graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from tracer_oracle import compiled


def test_a_hook_that_removes_itself_is_traced() -> None:
    first, last = nn.Linear(2, 2), nn.Linear(2, 2)

    def hook(module: nn.Module, given: Any, made: torch.Tensor) -> torch.Tensor:
        handle.remove()
        other.remove()
        return made * 2

    handle = first.register_forward_hook(hook)
    other = last.register_forward_pre_hook(lambda module, given: (given[0] + 1,))

    def program(x: torch.Tensor) -> torch.Tensor:
        return last(first(x))

    made = compiled(program)
    x = torch.ones(2)
    assert torch.equal(made(x), last(first(x) * 2))
    assert not first._forward_hooks
    assert not last._forward_pre_hooks
    assert torch.equal(made(x), last(first(x)))
    assert made.eager_reason is None
    assert not made.breaks
    assert len(made.entries) == 2


def test_gradients_are_kept_in_passes_to_some_leaves_and_with_a_graph() -> None:
    def program(x: torch.Tensor) -> Any:
        w = torch.ones(2, requires_grad=True)
        y, z = x * 2, w * 3
        y.retain_grad()
        z.retain_grad()
        (y * z).sum().backward(inputs=[w], create_graph=True)
        first = y.grad, z.grad.detach()
        (y.sin() * z.cos()).sum().backward(inputs=[x])
        return first, y.grad, x.grad

    made = compiled(program)
    one, other = (torch.ones(2, requires_grad=True) for _ in range(2))
    (kept, expected) = made(one), program(other)
    assert kept[0][0] is None
    assert expected[0][0] is None
    for found, wanted in zip((kept[0][1], *kept[1:]), (expected[0][1], *expected[1:]), strict=True):
        assert torch.equal(found, wanted)
    assert not made.breaks
