"""Derivatives of derivatives through compiled programs: compiled themselves, and as eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_oracle import assert_alike, assert_as_eager, leaf, outcome

import plait

CASES = {}


def case(program):
    """Register code under its name; it is run with the program, in eager and compiled."""

    def register(code):
        CASES[code.__name__] = program, code
        return code

    return register


def double(*shape):
    return leaf(*shape, dtype=torch.float64)


def weighted(tensors):
    """A number in which each element of each tensor counts otherwise."""
    weights = [torch.linspace(0.5, 1, t.numel(), dtype=t.dtype).view(t.shape) for t in tensors]
    return sum((w * t * t).sum() + t.sin().sum() for w, t in zip(weights, tensors, strict=True))


def derivatives(outputs, inputs, order):
    """All derivatives up to an order, each of a number that mixes the ones before."""
    found = []
    for n in range(order):
        loss = weighted([t for t in outputs if t is not None and t.requires_grad])
        outputs = torch.autograd.grad(
            loss, inputs, create_graph=n + 1 < order, allow_unused=True, materialize_grads=False
        )
        found.append(outputs)
    return found


@case(lambda x, w: (x @ w).tanh() * x.exp())
def third_derivatives(run):
    x, w = double(3, 3), double(3, 3)
    return derivatives([run(x, w)], [x, w], 3)


@case(lambda x, w: (x @ w).sigmoid())
def fourth_derivatives_of_one_input(run):
    x, w = double(2, 2), double(2, 2)
    return derivatives([run(x, w)], [w], 4)


@case(lambda x, w: ((x * w).sin(), (w.exp() * 2), x.cos()))
def of_each_choice_of_results(run):
    x, w = double(3), double(3)
    return [derivatives([run(x, w)[n] for n in chosen], [x, w], 2) for chosen in ([0], [1], [0, 2])]


@case(lambda x, y: (x * y).sin())
def of_one_tensor_given_twice(run):
    x = double(4)
    return derivatives([run(x, x)], [x], 3)


@case(lambda x, y: (x * y).sin() + x)
def of_tensors_with_a_history(run):
    x = double(4)
    h = x.exp()
    return derivatives([run(h, h * x)], [x, h], 2)


@case(lambda x, w: (x * 2 + w, x.t() @ w))
def of_linear_programs(run):
    x, w = double(3, 3), double(3, 3)
    return derivatives(run(x, w), [x, w], 3)


def _writes(x, h, w):
    h.mul_(w).add_(x)
    return h.sin() * w, x.exp()


@case(_writes)
def of_inputs_that_are_written_to(run):
    x, w = double(3), double(3)
    h = x * 2
    return derivatives([*run(x, h, w), h.cos()], [x, w], 3)


@case(lambda x, w: (w.sin() * 2, x.exp(), w * 1))
def of_results_that_depend_on_some_inputs(run):
    x, w = double(3), double(3)
    return derivatives(run(x, w), [x, w], 3)


class _Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.norm = nn.Linear(4, 3).double(), nn.BatchNorm1d(3).double()

    def forward(self, x):
        return self.norm(self.layer(x)).sigmoid()


@case(_Normed())
def of_modules_with_buffers(run):
    x, before = double(5, 4), {k: v.clone() for k, v in run.state_dict().items()}
    found = derivatives([run(x)], [x, *run.parameters()], 2)
    after = {name: buffer.clone() for name, buffer in run.named_buffers()}
    run.load_state_dict(before)
    return found, list(after.values())


@case(lambda x, w: F.dropout(F.dropout(x, 0.3) * w, 0.5).exp())
def of_random_programs(run):
    x, w = double(20), double(20)
    found = derivatives([run(x, w)], [x, w], 3)
    return found, torch.rand(3)


def _checkpointed(x, w):
    h = checkpoint(lambda x: F.dropout((x * w).sin(), 0.3) * x, x, use_reentrant=False)
    return h.exp() * w


@case(_checkpointed)
def through_checkpoints(run):
    x, w = double(8), double(8)
    return derivatives([run(x, w)], [x, w], 2), torch.rand(3)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


@case(lambda x, w: _Cube.apply(x * w).sin())
def through_functions_of_the_program(run):
    x, w = double(4), double(4)
    return derivatives([run(x, w)], [x, w], 3)


def _hooked(x, w):
    h = (x * w).sin()
    h.register_hook(lambda grad: grad * h)
    return h * w


@case(_hooked)
def through_hooks(run):
    x, w = double(4), double(4)
    return derivatives([run(x, w)], [x, w], 2)


@case(lambda x, w: (torch.fft.rfft(x * w).abs(), x.cumprod(-1), w.prod(-1).sin()))
def of_spectra_and_products(run):
    x, w = double(2, 5), double(2, 5)
    return derivatives(run(x, w), [x, w], 2)


@case(lambda x: (x.sin() * x).view(2, 2).t())
def with_gradients_that_lie_otherwise(run):
    x = double(4)
    y = run(x)
    expanded = torch.ones((), dtype=torch.float64, requires_grad=True).expand(2, 2)
    (first,) = torch.autograd.grad(y, x, expanded, create_graph=True)
    return first, torch.autograd.grad(first.square().sum(), (x, expanded))


@case(lambda x: x.sin() * x)
def with_gradients_that_need_none(run):
    x = double(4)
    for _ in range(2):  # first compiled, then called
        (first,) = torch.autograd.grad(run(x), x, torch.ones_like(x), create_graph=True)
    return first, torch.autograd.grad(first.sum(), x)


@case(lambda x: x.sin() * x)
def that_accumulate(run):
    x = double(4)
    run(x).sum().backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.square().sum().backward()
    return first, x.grad


@case(lambda x: (x.sin() * x).exp())
def after_the_input_has_changed(run):
    x = double(4)
    h = x * 1
    y = run(h)
    h.mul_(2)
    return torch.autograd.grad(y.sum(), x, create_graph=True)


@case(lambda x: (x.sin() * x).exp())
def between_first_and_second(run):
    x = double(4)
    h = x * 1
    (first,) = torch.autograd.grad(run(h).sum(), h, create_graph=True)
    with torch.no_grad():
        h.mul_(2)
    return torch.autograd.grad(first.sum(), h)


@case(lambda x: x.exp() * x)
def that_use_up_the_graph(run):
    x = double(4)
    (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    second = torch.autograd.grad(first.sum(), x)
    return second, torch.autograd.grad(first.sum(), x)


@case(lambda x, w: F.linear(x, w).relu().square().sum())
def under_autocast(run):
    x, w = leaf(3, 4), leaf(5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run(x, w)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    return y, first, torch.autograd.grad(first.float().sum(), (x, w))


RAISES_BEFORE = {"after_the_input_has_changed"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_derivatives_are_compiled_and_those_of_eager(name):
    fast, _ = assert_as_eager(*CASES[name])
    graphs = plait.report(fast).graphs
    assert {graph.outcome for graph in graphs} == {"compiled"}, [g.reason for g in graphs]
    assert name in RAISES_BEFORE or any(".gradients" in graph.name for graph in graphs)


@pytest.mark.parametrize("name", ["third_derivatives", "of_random_programs", "through_hooks"])
@pytest.mark.sampled(2)
def test_native_code_computes_them_too(name):
    program, code = CASES[name]
    fast = plait.compile(program, options={"strict": True})
    assert_alike(outcome(code, fast), outcome(code, program))


@pytest.mark.parametrize("reentrant", [False, True])
def test_steps_with_random_checkpoints_use_the_numbers_of_the_forward(reentrant):
    weight = double(8)

    def region(x):
        return F.dropout((x * weight).sin(), 0.3) * x

    def code(run):
        weight.grad = None
        run(torch.randn(8, dtype=torch.float64))
        return weight.grad, torch.rand(2)

    def step(x):
        x = x.requires_grad_()
        (checkpoint(region, x, use_reentrant=reentrant).exp() * weight).sum().backward()

    assert_as_eager(step, code)


FIXED = torch.linspace(0.5, 1, 4, dtype=torch.float64)


@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (1,)])
def test_forces_of_a_fixed_potential_are_compiled(created, order):
    def forces(positions):
        positions = positions.detach().clone().requires_grad_()
        energy = (positions * FIXED).sin().exp().sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=created)
        return energy, -gradient, positions.shape

    def code(run):
        *found, _ = run(torch.randn(4, dtype=torch.float64))
        kinds = [(each.requires_grad, each.is_leaf) for each in found]
        for n in order:
            found[n].sum().backward(retain_graph=n == 1)
        return found, kinds

    fast, _ = assert_as_eager(forces, code)
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}


def test_a_result_of_a_leaf_that_the_program_keeps_needs_gradients():
    def program(x):
        kept = x.detach().requires_grad_()
        return (kept * 2).sin(), kept * 3

    def code(run):
        y, z = run(torch.randn(3))
        y.sum().backward()
        z.sum().backward()
        z.sum().backward()  # a product with a number saves nothing
        return y, z, torch.autograd.grad(y.sum(), y), y.sum().backward()

    fast, _ = assert_as_eager(program, code)
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}


def sliced_before_a_break(x, other):
    part = x[:1, :2]
    inner = part.sin()
    outer = inner.exp()
    other.squeeze_()
    return outer, inner


def softmax_before_a_break(x, other):
    part = x.narrow(0, 0, 2)
    inner = part.softmax(-1)
    outer = inner.softmax(-1)
    other.squeeze_()
    return outer * 2, inner


@pytest.mark.parametrize("program", [sliced_before_a_break, softmax_before_a_break])
def test_third_derivatives_follow_values_that_nobody_holds_any_more(program):
    def outcome_of(run):
        torch.manual_seed(0)
        source = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        outputs = run(source * 1.3, torch.randn(3, 4))
        found, loss = [], sum((each**3).sum() for each in outputs)
        for order in range(3):
            (gradient,) = torch.autograd.grad(loss, source, create_graph=order < 2)
            found.append(gradient.detach())
            loss = (gradient**2 * torch.arange(1.0, 13.0).view(3, 4)).sum()
        return found

    torch.testing.assert_close(
        outcome_of(plait.compile(program)), outcome_of(program), rtol=1e-9, atol=1e-9
    )
