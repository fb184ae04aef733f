"""Hooks and functions of a program's own that are not linear: they get the sum of all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fx_oracle import trace
from torch import fx

from plait_fx_passes import WaypointError, in_pieces, run_pieces, to_joint
from plait_fx_passes.tools import compile_with, identity


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given * given


class Alike(torch.autograd.Function):
    """Its gradient is the same whatever is given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return ctx.saved_tensors[0].cos()


class Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return given @ weight.t(), x.t() @ given


class Padded(torch.autograd.Function):
    """Its gradient stands beside zeros, made by padding none, as what is spread unevenly does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x[:-1] * 2

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        zeros = torch.nn.functional.pad(given.new_zeros(0, given.shape[1]), (0, 0, 0, 1))
        return torch.cat([given * 2, torch.cat([zeros[:0], zeros])])


FUNCTIONS = {"squared": Squared, "alike": Alike, "weighed": Weighed, "padded": Padded}


def call(name: str, *args: Any) -> Any:
    return FUNCTIONS[name].apply(*args)


def register_hook(tensor: torch.Tensor, name: str) -> Any:
    return tensor.register_hook(HOOKS[name])


fx.wrap("call")
fx.wrap("register_hook")


HOOKS = {
    "square": lambda gradient: gradient * gradient,
    "clip": lambda gradient: gradient.clamp(-0.5, 0.5),
    "ones": torch.ones_like,
    "mix": lambda gradient: gradient * 0.5 + gradient.flip(0),
    "mask": lambda gradient: torch.where(gradient > 9, 9.0, gradient),
}


def hooked(x, w):
    made = x * w
    register_hook(made, "square")
    return made.sin()


def hooked_late(x, w):
    made = (x @ w).exp()
    other = made * 3
    register_hook(made, "clip")
    return made.sin() + other.cos(), other


def hooked_twice(x, w):
    first = x.sin()
    register_hook(first, "clip")
    second = first * w
    register_hook(second, "square")
    register_hook(second, "clip")
    return (second * first).tanh().sum()


def hooked_part(x, w):
    left, right = (x * w).split([1, 2])
    register_hook(left, "clip")
    return (left * right).exp()


def hooked_view(x, w):
    made = (x * w).transpose(0, 1)
    register_hook(made, "clip")
    return made.sin() @ w


def always_ones(x, w):
    made = x * w
    register_hook(made, "ones")
    return made.exp() + made


def squared(x, w):
    return call("squared", x * w).sin()


def squared_twice(x, w):
    return call("squared", call("squared", x.tanh()) * w).sin()


def alike(x, w):
    return call("alike", x * w).exp() * w


def written_too(x, w):
    x.mul_(w)
    made = x.sin()
    register_hook(made, "clip")
    return made * x


def written_first(x, w):
    made = x * w
    register_hook(made, "clip")
    made.mul_(w)
    register_hook(made, "square")
    return made.sin()


def written_through_a_view(x, w):
    made = x * w
    row = made.select(0, 1)
    row.mul_(w.select(0, 0))
    register_hook(made, "clip")
    return made.exp() * row


def returned(x, w):
    made = x.sin()
    early = made * w
    register_hook(made, "clip")
    return early.exp(), made


# Each with the pieces that it falls into, and those of them that run as they are.
BENT = {
    hooked: (2, 1),
    hooked_late: (5, 2),
    hooked_twice: (2, 1),
    hooked_part: (3, 1),
    hooked_view: (3, 1),
    always_ones: (2, 1),
    squared: (3, 1),
    squared_twice: (5, 2),
    alike: (3, 1),
    written_first: (2, 1),
    written_through_a_view: (3, 1),
    returned: (4, 2),
}


def compiled(program):
    gm = trace(program)

    def run(*inputs):
        made = compile_with(gm, inputs, lambda graph, kind: identity(graph))
        return made(*inputs)

    return run


def inputs_of(kind=lambda each: each):
    torch.manual_seed(0)
    leaves = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    return leaves, [kind(each) for each in leaves]


def loss_of(results):
    results = results if isinstance(results, tuple) else (results,)
    return sum((each * each).sum() + each.sin().sum() for each in results)


def second_derivatives(run, kind=lambda each: each):
    """First gradients and those of a loss that depends on the results and the first gradients."""
    leaves, inputs = inputs_of(kind)
    loss = loss_of(run(*inputs))
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    joined = loss_of(first) + loss * loss
    second = torch.autograd.grad(joined, leaves, create_graph=True)
    third = torch.autograd.grad(loss_of(second) + loss, leaves)
    return first, second, third


@pytest.mark.parametrize("program", [*BENT, written_too], ids=lambda each: each.__name__)
def test_gradients_of_gradients_are_those_of_eager(program):
    kind = (lambda each: each * 1) if program is written_too else (lambda each: each)
    wanted = second_derivatives(program, kind)
    got = second_derivatives(compiled(program), kind)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("program", BENT, ids=lambda each: each.__name__)
def test_only_what_brings_them_runs_as_it_is(program):
    gm, (_, inputs) = trace(program), inputs_of()
    with pytest.raises(WaypointError) as refused:
        to_joint(gm, inputs)
    pieces = in_pieces(gm, inputs, refused.value)
    assert (len(pieces), sum(each.eager for each in pieces)) == BENT[program]
    for each in pieces:
        if not each.eager:
            to_joint(each.program, each.examples)
    run = run_pieces(pieces, lambda each: each.program)
    torch.testing.assert_close(run(*inputs), program(*inputs), rtol=0, atol=0)


def halved(x, w):
    made = x * w
    register_hook(made, "mix")
    return made.sin() + call("weighed", x, w)


def padded(x, w):
    made = x * w
    return made.sin()[:-1] + call("padded", made)


def masked(x, w):
    made = x * w
    register_hook(made, "mask")
    return made.sin()


@pytest.mark.parametrize("program", [halved, padded])
def test_linear_ones_stay_in_one_program(program):
    gm, (_, inputs) = trace(program), inputs_of()
    to_joint(gm, inputs)
    wanted, got = second_derivatives(program), second_derivatives(compiled(program))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def test_conditions_on_gradients_are_not_linear():
    with pytest.raises(WaypointError):
        to_joint(trace(masked), inputs_of()[1])
