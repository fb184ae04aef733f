"""Branches and loops on values: one operator of the graph each, with graphs as bodies."""

import gc
import threading

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from plait_bytecode_tracer import FullGraphError, compile, compile_bodies, compiled_function_of

WEIGHT = torch.eye(3, dtype=torch.float64) * 0.5 + 0.1


def branch(x):
    return torch.cond(x.sum() > 0, lambda: x @ WEIGHT, lambda: x.sin())


def loop(x):
    return while_loop(lambda x: x.sum() < 20, lambda x: (x * 1.5 + 1,), (x,))


def steps(x):
    return scan(lambda c, row: (c * row, c + row), x[0] * 1, x)


def rows(x):
    return map_rows(lambda row: torch.cond(row.sum() > 0, torch.sin, torch.cos, (row,)), x)


PROGRAMS = [(branch, "cond"), (loop, "while_loop"), (steps, "scan"), (rows, "scan")]


def captured(function, **options):
    """A function, compiled, and the list of the graphs that are captured."""
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    return compile(function, backend, fullgraph=True, **options), graphs


def operators(graph):
    found = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return [each for each in found if getattr(each, "namespace", "") == "plait_control"]


@pytest.mark.parametrize(("function", "name"), PROGRAMS)
@pytest.mark.sampled(2)
def test_each_is_one_operator_of_one_graph(function, name):
    compiled, graphs = captured(function)
    for sign in (1, -1):
        x = torch.linspace(0.1, 1, 12, dtype=torch.float64).view(4, 3) * sign
        torch.testing.assert_close(compiled(x), function(x))
    (graph,) = graphs
    (operator,) = operators(graph)
    assert operator._schema.name.startswith(f"plait_control::{name}_")


def test_what_branches_use_from_around_them_is_given_to_them():
    compiled, graphs = captured(
        lambda x: torch.cond(x.sum() > 0, lambda: x @ WEIGHT, lambda: x * 2)
    )
    compiled(torch.ones(2, 3, dtype=torch.float64))
    (operator,) = operators(graphs[0])
    assert len(operator._schema.arguments) == 3  # what is asked, x, the weight


def test_bodies_are_compiled_when_they_first_run():
    asked = []

    def compiler(body, inputs):
        asked.append([each.shape for each in inputs])
        return body.forward

    def backend(graph, examples):
        compile_bodies(graph, compiler)
        return graph.forward

    compiled = compile(branch, backend)
    x = torch.ones(2, 3, dtype=torch.float64)
    for _ in range(2):
        compiled(x)
    assert len(asked) == 1  # the other branch has not run
    compiled(-x)
    compiled(-x)
    assert len(asked) == 2


def test_a_long_scan_is_as_large_a_graph_as_a_short_one():
    sizes = []
    for length in (2, 512):
        compiled, graphs = captured(steps)
        compiled(torch.rand(length, 3, dtype=torch.float64))
        sizes.append(len(graphs[0].graph.nodes))
    assert sizes[0] == sizes[1]


def test_one_graph_serves_open_sizes():
    compiled, graphs = captured(
        lambda x: torch.cond(x.sum() > 0, lambda: x * x.shape[0], lambda: x + x.shape[0]),
        dynamic=True,
    )
    for length in (2, 5, 3):
        for sign in (1, -1):
            x = torch.rand(length, 3) * sign
            torch.testing.assert_close(compiled(x), x * length if sign == 1 else x + length)
    assert len(graphs) == 1


def changes(x):
    return x.add_(1) * 2


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x, "returns a tensor that it is given"),
        (lambda x: x[:1], "returns a tensor that it is given"),
        (lambda x: WEIGHT, "returns a tensor that it is given"),
        (changes, "changes a tensor"),
        (lambda x: x.sum(), "differ in shape"),
        (lambda x: x.int(), "differ in dtype"),
        (lambda x: x.expand(2, 2, 3)[0].t().contiguous().t() + 1, "differ in their strides"),
        (lambda x: (x + 1, x * 2), "nested in different ways"),
        (lambda x: None, "returns None"),
        (lambda x: x + 1 // 0, "raises"),
    ],
)
def test_what_torch_refuses_is_a_break_with_its_reason(function, reason):
    compiled, _ = captured(lambda x: torch.cond(x.sum() > 0, function, lambda x: x + 1, (x,)))
    with pytest.raises(FullGraphError) as error:
        compiled(torch.ones(2, 3))
    assert reason in str(error.value)


def test_side_effects_are_refused():
    seen = []

    def function(x):
        made = []
        return torch.cond(x.sum() > 0, lambda: (made.append(1), x + 1)[1], lambda: x * 2), made

    def outside(x):
        return torch.cond(x.sum() > 0, lambda: (seen.append(1), x + 1)[1], lambda: x * 2)

    for each in (function, outside):
        compiled, _ = captured(each)
        with pytest.raises(FullGraphError, match="changes objects"):
            compiled(torch.ones(3))
    assert not seen


def test_what_cannot_be_an_operator_is_traced_as_python():
    def count(x):
        return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2 + n), (0, x))

    compiled, graphs = captured(count)
    torch.testing.assert_close(compiled(torch.ones(3)), (3, torch.full((3,), 12.0)))
    assert not operators(graphs[0])


def test_a_break_on_a_value_says_why_it_is_no_operator():
    def function(x):
        return torch.cond(x.sum() > 0, lambda: x * bool(gc.get_count()), lambda: x + 1)

    compiled, _ = captured(function)
    with pytest.raises(FullGraphError, match=r"it is no operator of the graph: .*get_count"):
        compiled(torch.rand(3))
    broken = compile(function, lambda graph, examples: graph.forward)
    x = torch.rand(3)
    torch.testing.assert_close([broken(x), broken(-x)], [x, 1 - x])


def test_gradients_of_higher_order():
    def function(x):
        y = torch.cond(x.sum() > 0, lambda: x.tanh() @ WEIGHT, lambda: x.sin())
        return steps(y)[1] + loop(y)[0]

    def meant(x):
        y = x.tanh() @ WEIGHT if x.sum() > 0 else x.sin()
        carry, found, grown = y[0], [], y
        for row in y:
            found.append(carry + row)
            carry = carry * row
        while grown.sum() < 20:
            grown = grown * 1.5 + 1
        return torch.stack(found) + grown

    compiled, _ = captured(function)
    for sign in (1, -1):
        x = torch.linspace(0.1, 1, 12, dtype=torch.float64).view(4, 3).mul(sign).requires_grad_()
        found = [each(x).square().sum() for each in (compiled, meant)]
        for _ in range(3):
            found = [torch.autograd.grad(f, x, create_graph=True)[0].sin().sum() for f in found]
            torch.testing.assert_close(*found)


def test_threads_call_one_operator():
    compiled, _ = captured(steps)
    wrong = []

    def run(seed):
        x = torch.rand(6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for _ in range(20):
            if not torch.allclose(compiled(x)[1], steps_in_python(x)):
                wrong.append(seed)

    def steps_in_python(x):
        carry, found = x[0], []
        for row in x:
            found.append(carry + row)
            carry = carry * row
        return torch.stack(found)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert len(compiled_function_of(compiled).entries) == 1
