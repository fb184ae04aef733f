"""Numbers that each call gives, and operators over lists of tensors."""

import math
import operator

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import plait_fx_passes as fx_passes
from plait_utils.fake import FakeMode


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
    "interpolation": lambda x, a: torch.lerp(x, x * 2, a),
    "power": lambda x, a: x**a,
    "power of it": lambda x, a: (a**x).pow_(a),
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


def written(names, build):
    """A graph as a tracer makes it: its placeholders, and nodes that `build` makes of these."""
    graph = fx.Graph()
    graph.output(build(graph, *map(graph.placeholder, names)))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize("values", [(0.5, 2.0), (2.0, 0.5), (math.nan, 1.0), (-0.0, 0.0)])
@pytest.mark.parametrize("choose", [max, min])
def test_the_greater_and_the_less_of_two_numbers_are_those_of_python(choose, values):
    def build(graph, x, a, b):
        read = graph.call_method("item", (x,))
        chosen = graph.call_function(choose, (a, b))
        return chosen, graph.call_function(choose, (read, 1.0)), graph.call_method("add", (x, a))

    gm = written("xab", build)
    graph = fx_passes.to_aten(gm, [torch.ones(()), 1.5, 2.5])
    fx_passes.verify(graph)
    assert "output 0 is the number in result 0" in fx_passes.print_aten(graph)
    x = torch.tensor(values[0])
    found = fx_passes.wrap_runtime(graph, graph.module())(x, *values)
    expected = gm(x, *values)
    assert [type(each) for each in found] == [float, float, torch.Tensor]
    assert list(map(str, found)) == list(map(str, expected))


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float16}, {"device": "cpu"}])
def test_a_tensor_is_made_of_a_number(make, options):
    gm = written("xa", lambda graph, x, a: (graph.call_function(make, (a,), options),))
    graph = fx_passes.to_aten(gm, [torch.ones(()), 1.5])
    fx_passes.verify(graph)
    (found,) = fx_passes.wrap_runtime(graph, graph.module())(torch.ones(()), 0.1)
    torch.testing.assert_close(found, make(0.1, **options), rtol=0, atol=0)


def test_numbers_are_returned():
    graph = traced(lambda x, a: (x + 1, a, a * 2 - 1), torch.ones(2), 1.5)
    found = fx_passes.wrap_runtime(graph, graph.module())(torch.ones(2), 0.1)
    assert found[1:] == (0.1, 0.1 * 2 - 1)


REFUSED = {
    "size": lambda x, a: torch.arange(a),
    "checked": lambda x, a: torch.nn.functional.softshrink(x, a),
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


@pytest.mark.parametrize("name", REFUSED)
def test_an_element_that_decides_is_refused(name):
    with pytest.raises(fx_passes.AtenTraceError):
        traced(lambda x, a: REFUSED[name](x, a.item()), torch.ones(2), torch.ones(()))


KEPT = {
    "returned": lambda x: (x + 1, x.sum().item()),
    "computed with": lambda x: (x + 1, x.sum().item() * 2),
    "taken": lambda x: x * x.sum().item(),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", KEPT)
def test_elements_of_gpus_tensors_are_refused_where_sizes_are_open(name, device):
    """Their graphs are run in parts, with what torch's own symbol stands for read between them."""
    with FakeMode(shape_env=ShapeEnv()):
        x = torch.empty(3, device=device)
    if device == "cpu":
        fx_passes.verify(traced(KEPT[name], x))
        return
    with pytest.raises(fx_passes.AtenTraceError) as caught:
        traced(KEPT[name], x)
    assert isinstance(caught.value.__cause__, DataDependentOutputException)


FOLLOWED = {
    "product": lambda x, a: x * a,
    "quotient": lambda x, a: a / x,
    "in place": lambda x, a: (x * 1).mul_(a).div_(a + 1),
    "clamped": lambda x, a: x.clamp(min=a),
    "scaled softmax": lambda x, a: torch.softmax(x * a, -1) * x,
    "slope": lambda x, a: torch.nn.functional.leaky_relu(x - 1, a),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_program_that_differentiates_does_so_by_numbers_that_it_reads(name):
    def build(graph, x, a):
        result = graph.call_function(FOLLOWED[name], (x, graph.call_method("item", (a,))))
        total = graph.call_method("sum", (result,))
        gradients = graph.call_function(torch.autograd.grad, (total, [x]))
        return (graph.call_function(operator.getitem, (gradients, 0)),)

    gm = written("xa", build)
    x = torch.rand(3, 4, dtype=torch.float64).add(0.5).requires_grad_()
    graph = fx_passes.to_aten(gm, [x, torch.tensor(1.5, dtype=torch.float64)])
    fx_passes.verify(graph)
    for value in (0.25, 1.0, 3.0):
        a = torch.tensor(value, dtype=torch.float64)
        found = fx_passes.wrap_runtime(graph, graph.module())(x, a)
        torch.testing.assert_close(found, gm(x, a))


@pytest.mark.parametrize("budget", [None, 0, 1])
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_backward_gets_numbers_that_the_forward_has_read(name, budget):
    def build(graph, x, w):
        number = graph.call_method("item", (graph.call_method("sum", (w,)),))
        doubled = graph.call_function(operator.mul, (number, 2.0))
        return (graph.call_function(FOLLOWED[name], (x, doubled)),)

    gm = written("xw", build)
    x = torch.rand(3, 4, dtype=torch.float64).add(0.5).requires_grad_()
    examples = [x, torch.ones(7, dtype=torch.float64)]
    recorded = fx_passes.to_joint(gm, examples)
    fx_passes.verify(recorded.flat())
    joint = recorded.replace_graph(fx_passes.run_passes(recorded.flat()).graph)
    parts = fx_passes.partition(joint, budget)
    for each in (parts.forward, parts.backward):
        fx_passes.verify(each)
    assert parts.saved_bytes <= 3 * 12 * 8 + 8
    run = fx_passes.wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
    for value in (0.25, 1.0, 3.0):
        w = torch.full((7,), value / 14, dtype=torch.float64)
        (found,), (expected,) = run(x, w), gm(x, w)
        w.zero_()  # eager has kept the number
        torch.testing.assert_close(found, expected)
        grads = [torch.autograd.grad(each.sin().sum(), x) for each in (found, expected)]
        torch.testing.assert_close(*grads)


class ByGradient(torch.autograd.Function):
    """Scales its gradient by a number that it reads from it."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.sum().item()


def test_a_number_that_a_backward_reads_from_a_gradient_is_refused():
    gm = written("x", lambda graph, x: (graph.call_function(ByGradient.apply, (x,)),))
    with pytest.raises(fx_passes.WaypointError, match="more with gradients than weigh them"):
        fx_passes.to_joint(gm, [torch.ones(2, requires_grad=True)])


def test_a_derivative_that_decides_by_a_number_is_refused():
    def build(graph, x, a):
        result = graph.call_function(torch.pow, (x, graph.call_method("item", (a,))))
        total = graph.call_method("sum", (result,))
        return (graph.call_function(torch.autograd.grad, (total, [x])),)

    with pytest.raises(fx_passes.AtenTraceError, match="is needed"):
        fx_passes.to_aten(written("xa", build), [torch.ones(2, requires_grad=True), torch.ones(())])


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


def test_numbers_that_a_mapped_operator_casts():
    """`torch.vmap` makes a float tensor of the number before it multiplies integers by it."""
    mapped = torch.vmap(lambda i, x: i * 0.1 + x)
    inputs = torch.arange(3), torch.randn(3)
    graph = fx_passes.to_aten(_calling(mapped), list(inputs))
    fx_passes.verify(graph)
    torch.testing.assert_close(run(graph, *inputs), mapped(*inputs))


def _calling(function):
    """A graph of one call, of a function of two tensors."""
    graph = fx.Graph()
    graph.output(graph.call_function(function, (graph.placeholder("i"), graph.placeholder("x"))))
    return fx.GraphModule({}, graph)
