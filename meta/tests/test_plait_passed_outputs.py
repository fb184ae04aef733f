"""Returned values from which others were computed, through the whole compiler."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plait


class Layered(nn.Module):
    """Returns a loss beside what it was computed from: logits, and the states of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x, target):
        states = []
        for layer in self.layers:
            x = F.gelu(layer(x))
            states.append(x)
        logits = self.head(x)
        return {"logits": logits, "states": states, "loss": F.cross_entropy(logits, target)}


def example(rows=6):
    torch.manual_seed(rows)
    return torch.randn(rows, 8), torch.randint(0, 5, (rows,))


def plainly(model, out):
    out["loss"].backward()
    return [each.grad for each in model.parameters()]


def of_parameters(model, out):
    return torch.autograd.grad(out["loss"], list(model.parameters()))


def of_everything(model, out):
    wanted = [*model.parameters(), out["logits"], *out["states"]]
    return torch.autograd.grad(out["loss"], wanted)


def with_hooks(model, out):
    seen = []
    out["states"][1].register_hook(lambda given: given * 2)
    out["logits"].register_hook(seen.append)
    out["states"][2].retain_grad()
    out["loss"].backward()
    return [*(each.grad for each in model.parameters()), *seen, out["states"][2].grad]


def two_losses(model, out):
    (out["loss"] + out["states"][0].square().mean()).backward()
    return [each.grad for each in model.parameters()]


def penalty(model, out):
    (slope,) = torch.autograd.grad(out["loss"], out["states"][0], create_graph=True)
    (slope.norm() + out["loss"]).backward()
    return [slope, *(each.grad for each in model.parameters())]


WAYS = [plainly, of_parameters, of_everything, with_hooks, two_losses, penalty]


@pytest.mark.parametrize(
    ("way", "dynamic"), [*((way, None) for way in WAYS), (with_hooks, True), (of_everything, True)]
)
@pytest.mark.sampled(3)
def test_gradients_are_those_of_eager(way, dynamic):
    torch.manual_seed(0)
    model = Layered()
    run = plait.compile(model, fullgraph=True, dynamic=dynamic)
    for rows in (6, 6, 9):
        found = []
        for call in (model, run):
            model.zero_grad()
            found.append(way(model, call(*example(rows))))
            found[-1] = [each.detach().clone() for each in found[-1]]
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_stages_are_compiled():
    """What a stage needs of the forward is not computed again by eager kernels."""
    torch.manual_seed(0)
    model = Layered()
    run = plait.compile(model, fullgraph=True)
    of_everything(model, run(*example()))
    out = run(*example())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        of_everything(model, out)
    ran = {each.key for each in profile.key_averages()}
    assert not ran & {"aten::gelu", "aten::gelu_backward", "aten::_log_softmax"}


def test_verified_calls_compare_what_comes_through_outputs():
    torch.manual_seed(0)
    model = Layered()
    run = plait.compile(model, fullgraph=True, options={"verify": 2})
    got = of_everything(model, run(*example()))
    torch.testing.assert_close(got, of_everything(model, model(*example())))
