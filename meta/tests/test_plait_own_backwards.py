"""Second derivatives through hooks and functions of the user's that clip gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import plait


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clamp(-0.5, 0.5)


class Hooked(nn.Module):
    """With a hook on a tensor that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.first(x).tanh()
        made.register_hook(lambda given: given.clamp(-0.1, 0.1))
        return self.second(made).sin()


class OfAModule(Hooked):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_full_backward_hook(lambda _, given, __: (given[0].clamp(-0.1, 0.1),))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x * 2).tanh()).sin()


class Calling(Hooked):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(Clipped.apply(self.first(x))).sin()


class Checkpointed(Hooked):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = super().forward
        return torch.utils.checkpoint.checkpoint(inner, x.sin(), use_reentrant=False).exp()


def derivatives(run, module):
    torch.manual_seed(1)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    leaves = [x, *module.parameters()]
    loss = run(x).square().sum()
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    joined = sum(each.square().sum() for each in first) + loss.sin()
    return first, torch.autograd.grad(joined, leaves)


@pytest.mark.parametrize("kind", [Hooked, OfAModule, Calling, Checkpointed])
def test_second_derivatives_are_those_of_eager(kind):
    torch.manual_seed(0)
    module = kind()
    run = plait.compile(module)
    got, wanted = derivatives(run, module), derivatives(module, module)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def test_the_report_says_why_and_where():
    module = Hooked()
    run = plait.compile(module)
    derivatives(run, module)
    (whole,) = (each for each in plait.report(run).graphs if each.name == "Hooked-0")
    assert whole.runs == "compiled"
    assert whole.reason is None
    assert whole.pieces.startswith("in 3 pieces, 1 of them as captured: a hook or function")
    assert "made.register_hook" in whole.pieces
