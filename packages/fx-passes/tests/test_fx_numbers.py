"""Numbers that each call gives, and operators over lists of tensors."""

import operator

import pytest
import torch
from torch import fx

import plait_fx_passes as fx_passes


def traced(function, *inputs):
    """The ATen graph of a function; a float among the inputs is a number of each call."""
    graph = fx_passes.to_aten(fx.symbolic_trace(function), list(inputs))
    fx_passes.verify(graph)
    return graph


def targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def run(graph, *inputs):
    results = graph.module()(*inputs)
    return results[0] if len(results) == 1 else results


USES = {
    "product": lambda x, a: x * a,
    "quotient": lambda x, a: x / a,
    "difference": lambda x, a: a - x,
    "scaled sum": lambda x, a: torch.add(x, x, alpha=a),
    "addcmul": lambda x, a: torch.addcmul(x, x, x, value=a),
    "addcdiv": lambda x, a: torch.addcdiv(x, x, x, value=a),
    "arithmetic": lambda x, a: x * (2 * a - 1) / -a,
    "filled": lambda x, a: torch.full((2,), a),
    "clamp": lambda x, a: x.clamp(min=a),
    "list": lambda x, a: torch._foreach_mul([x, x], [a, a + 1])[1],
}


@pytest.mark.parametrize("name", USES)
def test_a_number_of_each_call_is_an_input(name):
    x = torch.rand(3, 4, dtype=torch.float64) + 0.5
    graph = traced(USES[name], x, 1.5)
    for number in (0.25, 3.0, 1.0):
        assert torch.allclose(run(graph, x, number), USES[name](x, number))


def test_arithmetic_of_numbers_is_nodes():
    graph = traced(lambda x, a: x * (a - 1), torch.ones(2), 1.5)
    assert targets(graph) == [operator.sub, torch.ops.aten.mul.Tensor]


REFUSED = {
    "branch": lambda x, a: torch.lerp(x, x, a),
    "power": lambda x, a: x**a,
    "returned": lambda x, a: (x + 1, a),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_program_that_needs_the_value_is_refused(name):
    with pytest.raises(fx_passes.AtenTraceError):
        traced(REFUSED[name], torch.ones(2), 1.5)


READ = {
    "addcdiv": lambda x, a: torch.addcdiv(x, x, x, value=-a),
    "scaled sum": lambda x, a: torch.add(x, x, alpha=a),
    "written": lambda x, a: x.clone().add_(x, alpha=a.mul_(2)),
    "list": lambda x, a: torch._foreach_add([x, x], [x, x], alpha=a * 2)[1],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", READ)
def test_the_element_of_a_tensor_is_a_number(name, dtype):
    x = torch.rand(3, 4, dtype=torch.float64) + 0.5
    graph = traced(READ[name], x, torch.tensor(1.5, dtype=dtype))
    for value in (0.25, 3.1, 1.0):
        found, expected = (torch.tensor(value, dtype=dtype) for _ in range(2))
        made = fx_passes.wrap_runtime(graph, graph.module())(x, found)
        assert torch.equal(made, READ[name](x, expected))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["branch", "returned"])
def test_an_element_that_decides_is_refused(name):
    with pytest.raises(fx_passes.AtenTraceError):
        traced(lambda x, a: REFUSED[name](x, a.item()), torch.ones(2), torch.ones(()))


def test_a_number_read_from_a_tensor_stays_out_of_what_a_backward_needs():
    x, a = torch.ones(2, requires_grad=True), torch.tensor(0.5)
    gm = fx.symbolic_trace(lambda x, a: torch.add(x, x, alpha=a))
    with pytest.raises(fx_passes.AtenTraceError, match="number"):
        fx_passes.to_joint(gm, [x, a])


LISTS = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=0.5),
    "tensor": lambda a, b: torch._foreach_mul(a, b[0].mean()),
    "scalars": lambda a, b: torch._foreach_div(a, [2.0, 3.0]),
    "unary": lambda a, b: torch._foreach_sqrt(a),
    "addcdiv": lambda a, b: torch._foreach_addcdiv(a, a, b, [2.0, 3.0]),
    "addcmul": lambda a, b: torch._foreach_addcmul(a, a, b, value=2.0),
    "lerp": lambda a, b: torch._foreach_lerp(a, b, 0.25),
    "lerp of tensors": lambda a, b: torch._foreach_lerp(a, b, b),
    "pow": lambda a, b: torch._foreach_pow(2.0, a),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
    "minimum of numbers": lambda a, b: torch._foreach_minimum(a, [0.5, 0.75]),
    "norm": lambda a, b: torch._foreach_norm(a),
    "largest": lambda a, b: torch._foreach_max(a),
}


@pytest.mark.parametrize("name", LISTS)
def test_operators_over_lists_are_taken_apart(name):
    inputs = [torch.rand(shape, dtype=torch.float64) + 0.1 for shape in [(3, 4), (5,)] * 2]

    def program(a, b, c, d):
        parts = LISTS[name]([a, b], [c, d])
        return parts[0], parts[1]

    graph = traced(program, *inputs)
    assert not any("_foreach" in str(target) for target in targets(graph))
    for found, expected in zip(run(graph, *inputs), program(*inputs), strict=True):
        assert torch.allclose(found, expected)


def test_writes_through_lists_are_copied_back():
    def program(a, b):
        torch._foreach_add_([a, b, a], 1.0)
        torch._foreach_copy_([b], [a])
        torch._foreach_zero_([a])
        return (a * 2,)

    inputs = [torch.rand(3), torch.rand(3)]
    graph = traced(program, *inputs)
    assert len(graph.mutations) == 2
    expected, found = ([each.clone() for each in inputs] for _ in range(2))
    program(*expected)
    fx_passes.wrap_runtime(graph, graph.module())(*found)
    assert all(map(torch.equal, found, expected))
