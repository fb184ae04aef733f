"""Numbers that each call gives, and results that are written over inputs."""

import math
import operator
from types import SimpleNamespace

import pytest
import torch
from torch import fx

from plait_ir_lowering import (
    LoweringError,
    interpret,
    lower,
    parse_graph,
    print_graph,
    verify,
)
from plait_utils.fake import FakeMode

aten = torch.ops.aten


def graph_of(build, dtype=torch.float32):
    """A graph of a tensor `x` of 3 elements and a number; `build` makes nodes of them."""
    graph = fx.Graph()
    mode = FakeMode()
    x = graph.placeholder("x")
    x.meta["val"] = mode.from_tensor(torch.ones(3, dtype=dtype))
    number = graph.placeholder("number")
    number.meta["val"] = torch.SymFloat(SimpleNamespace())
    results = build(graph, x, number)
    for node in graph.nodes:
        node.meta.setdefault("val", x.meta["val"])
    graph.output(results)
    return graph


def scaled(graph, x, number):
    negated = graph.call_function(operator.neg, (number,))
    product = graph.call_function(aten.mul.Tensor, (x, negated))
    return (graph.call_function(aten.add.Tensor, (product, x), {"alpha": number}),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_number_is_an_input_of_one_f64(dtype):
    loops = lower(graph_of(scaled, dtype))
    verify(loops)
    assert parse_graph(print_graph(loops)) == loops
    x = torch.tensor([1.0, 2.0, 4.0], dtype=dtype)
    (found,) = interpret(loops, [x, torch.tensor(0.3, dtype=torch.float64)])
    assert torch.equal(found, torch.add(x * -0.3, x, alpha=0.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_element_of_a_tensor_is_a_number(dtype):
    def build(graph, x, number):
        with graph.inserting_before(number.next):
            rate = graph.placeholder("rate")
        rate.meta["val"] = FakeMode().from_tensor(torch.ones((), dtype=dtype))
        read = graph.call_function(aten._local_scalar_dense.default, (rate,))
        read.meta["val"] = number.meta["val"]
        return scaled(graph, x, read)

    loops = lower(graph_of(build))
    verify(loops)
    assert parse_graph(print_graph(loops)) == loops
    x, rate = torch.tensor([1.0, 2.0, 4.0]), torch.tensor(0.3, dtype=dtype)
    (found,) = interpret(loops, [x, torch.zeros((), dtype=torch.float64), rate])
    assert torch.equal(found, torch.add(x * -rate.item(), x, alpha=rate.item()))


@pytest.mark.parametrize("choose", [max, min])
@pytest.mark.parametrize("value", [0.3, 2.0, 1.0, math.nan])
def test_the_greater_and_the_less_of_two_numbers_are_those_of_python(choose, value):
    def build(graph, x, number):
        for operands in ((number, 1.0), (1.0, number)):
            chosen = graph.call_function(choose, operands)
            yield graph.call_function(aten.mul.Tensor, (x, chosen))

    loops = lower(graph_of(lambda *given: tuple(build(*given)), torch.float64))
    verify(loops)
    assert parse_graph(print_graph(loops)) == loops
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    found = interpret(loops, [x, torch.tensor(value, dtype=torch.float64)])
    for result, operands in zip(found, ((value, 1.0), (1.0, value)), strict=True):
        assert torch.equal(result.nan_to_num(), (x * choose(*operands)).nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_power_by_a_number_is_that_of_eager(dtype):
    def build(graph, x, number):
        return (graph.call_function(aten.pow.Tensor_Scalar, (x, number)),)

    loops = lower(graph_of(build, dtype))
    verify(loops)
    for values in ([1.0, 2.0, 0.25], [-0.0, math.inf, -math.inf], [-2.0, 0.0, math.nan]):
        x = torch.tensor(values, dtype=dtype)
        for exponent in (0.0, 0.5, -0.5, 1.0, 2.0, 3.0, -1.0, -2.0, 0.3):
            (found,) = interpret(loops, [x, torch.tensor(exponent, dtype=torch.float64)])
            torch.testing.assert_close(found, x**exponent, equal_nan=True)


def test_a_number_does_not_go_to_an_external_call():
    def build(graph, x, number):
        return (graph.call_function(aten.hardshrink.default, (x, number)),)

    with pytest.raises(LoweringError, match="not a tensor"):
        lower(graph_of(build))


def test_a_result_can_be_written_over_an_input():
    def build(graph, x, number):
        return (graph.call_function(aten.neg.default, (x,)), *scaled(graph, x, number))

    loops = lower(graph_of(build), mutations={1: 0})
    verify(loops)
    assert [name for name, _ in loops.mutations] == ["x"]
    assert len(loops.outputs) == 1
    x = torch.tensor([1.0, 2.0, 4.0])
    (negated,) = interpret(loops, [x, torch.tensor(0.5, dtype=torch.float64)])
    assert torch.equal(negated, torch.tensor([-1.0, -2.0, -4.0]))
    assert torch.equal(x, torch.zeros(3))
