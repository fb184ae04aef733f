"""Tensor subclasses that wrap tensors: programs over them as programs over what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import plait_fx_passes as fx_passes
from plait_fx_passes import AtenTraceError

aten = torch.ops.aten


class Pair(torch.Tensor):
    """Two tensors on which everything happens twice."""

    a: torch.Tensor
    b: torch.Tensor

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, strides=a.stride())

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def run(name: str) -> Any:
            take = lambda each: getattr(each, name)  # short
            given = pytree.tree_map_only(Pair, take, (args, kwargs or {}))
            return func(*given[0], **given[1])

        first, second = run("a"), run("b")
        if func._schema.name.endswith("_"):
            return args[0]
        if isinstance(first, tuple | list):
            return [cls(one, two) for one, two in zip(first, second, strict=True)]
        return cls(first, second) if isinstance(first, torch.Tensor) else first


class Scaled(torch.Tensor):
    """Integers and a scale; operators see what they stand for."""

    q: torch.Tensor
    s: torch.Tensor

    @staticmethod
    def __new__(cls, q: torch.Tensor, s: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=s.dtype, strides=q.stride())

    def __init__(self, q: torch.Tensor, s: torch.Tensor) -> None:
        self.q, self.s = q, s

    def __tensor_flatten__(self) -> Any:
        return ["q", "s"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["q"], inner["s"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.detach.default, aten.t.default, aten.alias.default):
            return cls(func(args[0].q), func(args[0].s))
        given = [each.q * each.s if isinstance(each, Scaled) else each for each in args]
        return func(*given, **(kwargs or {}))


def pair(*shape: int, grad: bool = False) -> Pair:
    made = Pair(torch.randn(shape), torch.randn(shape))
    return made.requires_grad_() if grad else made


def compiled(program: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    flat = fx_passes.flattened(torch.fx.symbolic_trace(program), given)
    assert flat is not None
    try:
        joint = fx_passes.to_joint(flat.program, flat.examples)
    except fx_passes.NoGradientsError:
        graph = fx_passes.to_aten(flat.program, flat.examples)
        fx_passes.verify(graph)
        return flat.wrap(fx_passes.wrap_runtime(graph, graph.module()))
    fx_passes.verify(joint.flat())
    parts = fx_passes.partition(joint)
    forward, backward = parts.forward.module(), parts.backward.module()
    return flat.wrap(fx_passes.wrap_training(joint, parts, forward, backward, flat.program))


def parts(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Pair):
        return [*parts(value.a), *parts(value.b)]
    if isinstance(value, Scaled):
        return [value.q, value.s]
    if isinstance(value, tuple | list):
        return [each for item in value for each in parts(item)]
    return [value.detach()]


def assert_same(one: Any, two: Any) -> None:
    assert type(one) is type(two)
    for got, wanted in zip(parts(one), parts(two), strict=True):
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()


def test_what_the_class_does_is_recorded_on_what_it_holds() -> None:
    def program(x: Any, y: Any) -> Any:
        return torch.nn.functional.linear(x, y).relu() * 2, x.sum()

    for y in (pair(4, 3), torch.randn(4, 3)):
        x = pair(2, 3)
        assert_same(compiled(program, x, y)(x, y), program(x, y))


@pytest.mark.parametrize("depth", [1, 2])
def test_gradients_are_wrappers_where_eager_s_are(depth: int) -> None:
    def program(x: Any) -> Any:
        return (x * x).sin()

    x: Any = pair(3, 3)
    for _ in range(depth - 1):
        x = Pair(x, pair(3, 3))
    x.requires_grad_()
    run = compiled(program, x)
    for _ in range(2):
        found = torch.autograd.grad(run(x).sum(), [x])
        assert_same(found, torch.autograd.grad(program(x).sum(), [x]))


def test_second_derivatives() -> None:
    def second(run: Callable[..., Any]) -> Any:
        (first,) = torch.autograd.grad(run(x).sum(), [x], create_graph=True)
        return torch.autograd.grad((first * first).sum(), [x])

    x = pair(3, grad=True)
    program = lambda x: (x * x * x).sin()  # two uses
    assert_same(second(compiled(program, x)), second(program))


def test_a_weight_of_integers_gets_a_plain_gradient() -> None:
    def program(x: Any, weight: Any) -> Any:
        return torch.nn.functional.linear(x, weight).tanh()

    weight = Scaled(torch.randint(-9, 9, (4, 3), dtype=torch.int8), torch.rand(4, 1))
    weight.requires_grad_()
    x = torch.randn(2, 3, requires_grad=True)
    run = compiled(program, x, weight)
    wanted = torch.autograd.grad(program(x, weight).sum(), [x, weight])
    assert_same(torch.autograd.grad(run(x, weight).sum(), [x, weight]), wanted)
    run(x, weight).sum().backward()
    assert type(weight.grad) is torch.Tensor


def test_a_gradient_of_another_kind_goes_through_the_program_again() -> None:
    def program(x: Any) -> Any:
        return torch.nn.functional.dropout(x * x, 0.5)

    x = pair(4, grad=True)
    run, given = compiled(program, x), torch.randn(4)
    found = []
    for each in (run, program):
        torch.manual_seed(0)
        found.append(torch.autograd.grad(each(x), [x], given))
    assert_same(*found)


def test_wrappers_are_written_to_in_place() -> None:
    def program(x: Any, y: Any) -> Any:
        x.mul_(2)
        x.a.add_(1)
        return x, x + y

    x, y = pair(3), torch.randn(3)
    other = Pair(x.a.clone(), x.b.clone())
    saved = other.detach().requires_grad_() * other
    got, wanted = compiled(program, x, y)(other, y), program(x, y)
    assert got[0] is other
    assert_same(got, wanted)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


def test_views_and_arguments_that_are_returned_are_eager_s() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        return x.t(), x, y, y, x.unbind(0)[1]

    for grad in (False, True):
        x = pair(2, 3, grad=grad)
        got = compiled(program, x)(x)
        assert_same(got, program(x))
        assert got[0]._base is x
        assert got[1] is x
        assert got[2] is got[3]
        assert got[0].requires_grad is grad


def test_programs_that_make_wrappers_alone() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(Pair, (x, x))
    made.meta["val"] = pair(2)
    graph.output((made, x))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    given = torch.randn(2)
    flat = fx_passes.flattened(module, [given])
    assert flat is not None
    recorded = fx_passes.to_aten(flat.program, flat.examples)
    run: Any = flat.wrap(fx_passes.wrap_runtime(recorded, recorded.module()))
    found, same = run(given)
    assert type(found) is Pair
    assert found.a is given
    assert same is given


def test_a_program_without_wrappers_is_left_alone() -> None:
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    assert fx_passes.flattened(module, [torch.randn(2)]) is None


def test_what_cannot_be_had_exactly_is_refused() -> None:
    x = pair(2)
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    graph.call_function(setattr, (node, "a", torch.zeros(2)))
    graph.output((graph.call_function(torch.sin, (node,)),))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    flat = fx_passes.flattened(module, [x])
    assert flat is not None
    with pytest.raises(AtenTraceError, match="changes what an argument's wrapper holds"):
        fx_passes.to_aten(flat.program, flat.examples)

    given = torch.randn(2, requires_grad=True)
    with pytest.raises(AtenTraceError, match="gradient of a plain tensor"):
        compiled(lambda x, y: x * y, x, given)
