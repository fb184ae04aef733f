"""Modules in, modules out: what `optimize` returns is called and behaves as what it was given."""

from __future__ import annotations

import operator
import warnings

import pytest
import torch
from fx_oracle import assert_like_eager, trace
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from plait_fx_passes import (
    DEFAULT_PASSES,
    PassError,
    RewriteRule,
    optimize,
    rule_pass,
    to_aten,
    wrap_runtime,
)
from plait_fx_passes.tools import checked

aten = torch.ops.aten


def matrix():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def targets(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def writes_and_returns(x, y):
    y = y.add_(1)
    return {"input": x, "written": y, "twice": (x * 2, y), "number": 3}


def views(x):
    y = x * 2
    return x[1:], x.t(), y[:, 1:], y, y.view(-1), x.view(torch.int32)


def writes_through_a_view(x):
    x[1:].mul_(2)
    return x.sum()


def turns_its_input(x):
    x.t_()
    return x + 1


def writes_uncounted(x):
    x.data.add_(1)
    return x * 2


PROGRAMS = [
    (writes_and_returns, 2),
    (views, 1),
    (writes_through_a_view, 1),
    (turns_its_input, 1),
    (writes_uncounted, 1),
    (lambda x: torch.cat(x.split(2, 1), 1).sin(), 1),
    (lambda x, y: (x.t() @ y).softmax(-1), 2),
]


@pytest.mark.parametrize(("program", "count"), PROGRAMS, ids=[str(i) for i in range(len(PROGRAMS))])
def test_the_module_behaves_as_the_program(program, count):
    inputs = [matrix() + n for n in range(count)]
    module = trace(program)
    assert_like_eager("module", optimize(module, inputs), module, inputs, 1e-6)


def shared(offset):
    """Two tensors that overlap, from some element of their memory on."""
    base = torch.arange(40.0)
    return base[offset : offset + 12].view(3, 4), base[offset + 4 : offset + 16].view(3, 4)


def writes_to_shared(x, y):
    x.add_(1)
    return y * 2, x[1:]


@pytest.mark.parametrize("kind", ["module", "kernels", "checked"])
@pytest.mark.parametrize("begin", [0, 8])
def test_inputs_that_share_memory_may_begin_anywhere_in_it(kind, begin):
    module = trace(writes_to_shared)
    graph = to_aten(module, shared(begin))
    run = {
        "module": lambda: optimize(module, shared(begin)),
        "kernels": lambda: wrap_runtime(graph, graph.module()),
        "checked": lambda: wrap_runtime(graph, checked(graph)),
    }[kind]()
    for offset in (0, 8):
        found, expected = shared(offset), shared(offset)
        torch.testing.assert_close(run(*found), module(*expected))
        torch.testing.assert_close(found, expected)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(x[0, 0] * 0 + 1)
        return self.layer(x) * self.calls


def test_parameters_and_buffers_are_shared():
    model = Counting()
    made = optimize(trace(model), [matrix()])
    assert dict(made.named_parameters())["layer.weight"] is model.layer.weight
    with torch.no_grad():
        model.layer.weight.mul_(2)
        torch.testing.assert_close(made(matrix()), model.layer(matrix()))
        assert model.calls == 1
        torch.testing.assert_close(made(matrix()), model.layer(matrix()) * 2)


def test_graphs_of_make_fx_and_of_export():
    def program(x):
        return torch.nn.functional.gelu(x.repeat(1, 1)).round()

    for module in (
        make_fx(program)(matrix()),
        make_fx(program, tracing_mode="fake")(matrix()),
        torch.export.export(as_layer(program), (matrix(),)).module(),
    ):
        made = optimize(module, [matrix()])
        torch.testing.assert_close(made(matrix()), program(matrix()))
        assert "aten.repeat.default" not in targets(made)


def as_layer(function):
    class Layer(nn.Module):
        def forward(self, x):
            return function(x)

    return Layer()


def test_a_pass_before_another_backend():
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def backend(module, example_inputs):
        made = optimize(module, example_inputs, (rule_pass("mine", [RULE]), *DEFAULT_PASSES))
        seen.append(targets(made))
        return made

    compiled = torch.compile(lambda x: torch.sin(x) * 2, backend=aot_autograd(fw_compiler=backend))
    torch.testing.assert_close(compiled(matrix()), torch.sin(matrix()) * 2)
    assert seen == [["aten.sin.default", "aten.add.Tensor"]]


def test_a_pass_before_a_backend_of_open_sizes():
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def backend(module, example_inputs):
        seen.append(optimize(module, example_inputs, (rule_pass("mine", [RULE]), *DEFAULT_PASSES)))
        return seen[-1]

    def program(x, n):
        return (torch.sin(x) * 2).view(-1, 2) + x.shape[0] * n, x[1:]

    compiled = torch.compile(program, backend=aot_autograd(fw_compiler=backend), dynamic=True)
    for size in (3, 5, 8):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x, 3), program(x, 3))
    assert len(seen) == 1
    assert "aten.mul.Tensor" not in targets(seen[0])


def test_a_pass_before_a_backend_in_training():
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def backend(module, example_inputs):
        seen.append(module)
        return optimize(module, example_inputs, (rule_pass("mine", [RULE]), *DEFAULT_PASSES))

    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    compiler = aot_autograd(fw_compiler=backend, bw_compiler=backend)
    x = matrix()
    compiled = torch.compile(lambda x: (model(x) * 2).sin().sum(), backend=compiler)
    found = torch.autograd.grad(compiled(x), model.parameters())
    wanted = torch.autograd.grad((model(x) * 2).sin().sum(), model.parameters())
    torch.testing.assert_close(found, wanted)
    assert len(seen) == 2


def test_symbolic_sizes_are_read_from_the_tensors_of_a_call():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    kinds = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = mode.from_tensor(torch.ones(6, 4), symbolic_context=kinds)

    def program(x):
        x.mul_(2)
        return (x * 1).view(-1, 2) + x.shape[0], x[1:], x.new_full((x.shape[0] // 2,), 3.0)

    module = trace(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = optimize(module, [fake])
    for size in (3, 6, 9):
        x = torch.randn(size, 4)
        assert_like_eager("sizes", made, program, [x], 0.0)


def test_exported_modules_of_open_sizes():
    class Layer(nn.Module):
        def forward(self, x):
            return torch.sin(x) * 2 + x.shape[0]

    sizes = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    module = torch.export.export(Layer(), (torch.ones(3, 4),), dynamic_shapes=sizes).module()
    mode = FakeTensorMode(shape_env=ShapeEnv())
    kinds = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = mode.from_tensor(torch.ones(6, 4), symbolic_context=kinds)
    made = optimize(module, [fake], (rule_pass("mine", [RULE]), *DEFAULT_PASSES))
    for size in (3, 7):
        x = torch.randn(size, 4)
        torch.testing.assert_close(made(x), Layer()(x))


def test_arguments_may_be_numbers():
    env = ShapeEnv()
    kinds = StatelessSymbolicContext([DimDynamic.DYNAMIC])
    fake = FakeTensorMode(shape_env=env).from_tensor(torch.ones(6), symbolic_context=kinds)
    module = trace(lambda n, x: (x * 1).view(n, -1) + n)
    inputs = [torch.ones(12), torch.ones(4, 3)]
    assert optimize(module, [4, inputs[0]])(4, inputs[0]).shape == (4, 3)
    examples = [fake.shape[0], fake.fake_mode.from_tensor(inputs[1])]
    made = optimize(trace(lambda n, x: x + n), examples)
    torch.testing.assert_close(made(5, inputs[1]), inputs[1] + 5)


RULE = RewriteRule("doubled", lambda x: aten.mul.Tensor(x, 2), lambda x: x + x)


def test_a_program_that_goes_backward_inside_is_refused():
    graph = fx.Graph()
    x = graph.placeholder("x")
    squared = graph.call_function(operator.mul, (x, x))
    total = graph.call_method("sum", (squared,))
    grads = graph.call_function(torch.autograd.grad, (total, x))
    graph.output(graph.call_function(operator.getitem, (grads, 0)))
    module = fx.GraphModule(nn.Module(), graph)
    with pytest.raises(PassError, match="goes backward"):
        optimize(module, [matrix().requires_grad_()])
