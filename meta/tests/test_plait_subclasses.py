"""Tensor subclasses that wrap tensors, compiled to programs over what they hold."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import plait

aten = torch.ops.aten


class Scaled(torch.Tensor):
    """Integers and a scale, as quantized weights are stored."""

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, dtype=scale.dtype, strides=numbers.stride()
        )

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    @classmethod
    def of(cls, value):
        scale = value.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
        return cls((value / scale).round().to(torch.int8), scale)

    def dequantize(self):
        return self.numbers * self.scale

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.detach.default, aten.t.default):
            return cls(func(args[0].numbers), func(args[0].scale))
        given = pytree.tree_map_only(Scaled, Scaled.dequantize, (args, kwargs or {}))
        return func(*given[0], **given[1])


class Pair(torch.Tensor):
    """Two tensors on which everything happens twice."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, strides=a.stride())

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def run(name):
            take = lambda each: getattr(each, name)  # short
            given = pytree.tree_map_only(Pair, take, (args, kwargs or {}))
            return func(*given[0], **given[1])

        first, second = run("a"), run("b")
        if func._schema.name.endswith("_"):
            return args[0]
        return cls(first, second) if isinstance(first, torch.Tensor) else first


def assert_same(one, two):
    assert type(one) is type(two)
    if isinstance(one, Pair):
        assert_same(one.a, two.a)
        assert_same(one.b, two.b)
    elif isinstance(one, Scaled):
        assert_same(one.numbers, two.numbers)
        assert_same(one.scale, two.scale)
    else:
        torch.testing.assert_close(one, two)


def outcomes(fast):
    return [graph.outcome for graph in plait.report(fast).graphs]


def test_a_module_with_quantized_weights_trains_its_other_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    quantized = Scaled.of(model[2].weight.detach())
    model[2].weight = torch.nn.Parameter(quantized, requires_grad=False)
    fast = plait.compile(model)
    x = torch.randn(3, 8)
    fast(x).square().sum().backward()
    found = [each.grad for each in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for got, each in zip(found, model.parameters(), strict=True):
        assert (got is None) is (each.grad is None)
        if got is not None:
            torch.testing.assert_close(got, each.grad)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert set(outcomes(fast)) == {"compiled"}


@pytest.mark.parametrize("grad", [False, True])
def test_wrappers_go_in_and_come_out(grad):
    def program(x, y):
        z = torch.nn.functional.linear(x, y).relu()
        return z * 2, z.a.sum(), Pair(y, y * 2), x.t()

    x, y = Pair(torch.randn(3, 4), torch.randn(3, 4)).requires_grad_(grad), torch.randn(2, 4)
    fast = plait.compile(program, fullgraph=True)
    got, wanted = fast(x, y), program(x, y)
    for one, two in zip(got, wanted, strict=True):
        assert_same(one, two)
    assert got[2].a is y
    assert got[3]._base is x
    assert got[0].requires_grad is grad
    if grad:
        ones = [Pair(torch.ones(3, 2), torch.ones(3, 2)) for _ in range(2)]
        found = torch.autograd.grad(got[0], [x], ones[0])
        assert_same(found[0], torch.autograd.grad(wanted[0], [x], ones[1])[0])
    assert set(outcomes(fast)) == {"compiled"}


def test_an_optimizer_steps_over_parameters_that_are_wrappers():
    def step(weight, gradient):
        with torch.no_grad():
            weight.mul_(0.9)
            weight.add_(gradient, alpha=-0.1)
        return weight

    weights = [Pair(torch.ones(3), torch.zeros(3)).requires_grad_() for _ in range(2)]
    fast = plait.compile(step)
    for _ in range(3):
        gradient = Pair(torch.randn(3), torch.randn(3))
        assert fast(weights[0], gradient) is weights[0]
        step(weights[1], gradient)
        assert_same(*(each.detach() for each in weights))
    assert set(outcomes(fast)) == {"compiled"}


def test_a_gradient_of_another_class_is_taken_as_eager_takes_it():
    x = Pair(torch.randn(4), torch.randn(4)).requires_grad_()
    program = lambda x: (x * x).sin()  # two uses
    fast, given = plait.compile(program), torch.randn(4)
    found = torch.autograd.grad(fast(x), [x], given)
    assert_same(found[0], torch.autograd.grad(program(x), [x], given)[0])


def test_calls_are_verified(caplog):
    x = Pair(torch.randn(4), torch.randn(4)).requires_grad_()
    fast = plait.compile(lambda x: (x * x).sin(), options={"verify": 2})
    fast(x)
    graph = plait.report(fast).graphs[0]
    assert graph.outcome == "compiled"
    assert graph.verification == "1 call as in eager"
    assert not caplog.records


def gradients_of_some(function):
    """What is asked for of a function of three wrappers, one of which is computed of another."""
    torch.manual_seed(0)
    first, second, third = (Pair(torch.randn(4), torch.randn(4)).requires_grad_() for _ in range(3))
    computed = first * first
    result = function(computed, second, third)
    ones = Pair(torch.ones(4), torch.ones(4))
    found = [*torch.autograd.grad(result, [second], ones, retain_graph=True)]
    found += torch.autograd.grad(result, [computed, third], ones, retain_graph=True)
    torch.autograd.grad(computed, [first], ones)  # what is behind it cannot be had again
    found += torch.autograd.grad(result, [computed, second, third], ones, create_graph=True)
    found += torch.autograd.grad(found[-1], [second, computed], ones, retain_graph=True)
    third.register_hook(lambda gradient: gradient * 3)
    result.backward(ones, inputs=[third, second])
    return [*found, second.grad, third.grad, first.grad]


def test_gradients_of_some_of_several_wrappers():
    program = lambda x, y, z: (x * y).sin() * z  # short
    fast = plait.compile(program, fullgraph=True)
    for one, two in zip(gradients_of_some(fast), gradients_of_some(program), strict=True):
        assert (one is None) is (two is None)
        if one is not None:
            assert_same(one.detach(), two.detach())
    assert set(outcomes(fast)) == {"compiled"}
