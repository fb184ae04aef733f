"""Operators that autograd takes apart into parts that ask for values; results that share memory."""

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from plait_fx_passes import (
    AtenTraceError,
    partition,
    run_passes,
    to_aten,
    to_joint,
    wrap_training,
)


def compiled(program, *inputs):
    gm = fx.symbolic_trace(program)
    recorded = to_joint(gm, inputs)
    joint = recorded.replace_graph(run_passes(recorded.flat(), verify_each=True).graph)
    parts = partition(joint)
    return wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)


def positive(n):
    x = torch.linspace(-1, 1, n * n, dtype=torch.float64).view(n, n)
    return (x @ x.T + n * torch.eye(n, dtype=torch.float64)).requires_grad_()


PROGRAMS = {
    "inv": lambda x: torch.linalg.inv(x),
    "inverse_power": lambda x: torch.linalg.matrix_power(x, -2),
    "cholesky": lambda x: torch.linalg.cholesky(x),
    "solve": lambda x: torch.linalg.solve(x, x.sin()),
    "lu_factor": lambda x: torch.linalg.lu_factor(x)[0],
    "cov": lambda x: torch.cov(x),
    "corrcoef": lambda x: torch.corrcoef(x),
    "layer_norm_with_statistics": lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5)[0],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager(name):
    program, x = PROGRAMS[name], positive(4)
    found = [torch.autograd.grad(run(x).sin().sum(), x) for run in (compiled(program, x), program)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["inv", "cholesky", "solve"])
def test_values_are_still_checked(name):
    run = compiled(PROGRAMS[name], positive(3))
    refused = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    for call in (run, PROGRAMS[name]):
        with pytest.raises(torch.linalg.LinAlgError):
            call(refused)


def test_what_only_checks_values_of_inputs_is_refused():
    with pytest.raises(AtenTraceError, match="only checks values"):
        to_joint(
            fx.symbolic_trace(lambda x: (torch._assert_async(x.sum()), x * 2)[1]), [positive(2)]
        )
    weights = torch.ones(4, dtype=torch.long)
    with pytest.raises(AtenTraceError, match="needs the values"):
        to_joint(fx.symbolic_trace(lambda x, w: torch.cov(x, fweights=w)), [positive(4), weights])


def test_a_result_whose_gradient_reaches_nothing_needs_one_all_the_same():
    x = positive(3)
    y = compiled(lambda x: torch.linalg.vector_norm(x.sin(), 0), x)(x)
    assert y.requires_grad
    assert torch.autograd.grad(y, x, allow_unused=True) == (None,)


def test_memory_that_an_operator_of_its_own_fakes_is_written_to():
    """What torch fakes by a program is not followed by autograd."""

    def program(x):
        y = x.new_empty(6, 4)
        y[1:5].copy_(x)
        y[:1].copy_(y[4:5])
        y[5:].copy_(y[1:2])
        return y

    x = positive(4)
    found = [torch.autograd.grad(run(x).sin().sum(), x) for run in (compiled(program, x), program)]
    torch.testing.assert_close(*found)


def test_statistics_of_a_layer_norm_need_no_gradients():
    x = positive(4)
    y, mean, rstd = compiled(lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5), x)(x)
    assert (y.requires_grad, mean.requires_grad, rstd.requires_grad) == (True, False, False)


def view_and_detached(x):
    y = x * 2
    return y.t(), y.detach()


def detached_between_views(x):
    y = x * 2
    return y[:1], y.detach(), y[1:]


def written_then_detached(x):
    y = x * 2
    y.mul_(x)
    return y.detach().t(), y[0], y.detach()


@pytest.mark.parametrize(
    "program", [view_and_detached, detached_between_views, written_then_detached]
)
def test_a_view_has_gradients_beside_the_same_memory_detached(program):
    x = positive(4)
    pair = [run(x) for run in (compiled(program, x), program)]
    flags, wanted = ([each.requires_grad for each in outputs] for outputs in pair)
    assert flags == wanted
    found = [
        torch.autograd.grad(sum(y.sin().sum() for y in outputs if y.requires_grad), x)
        for outputs in pair
    ]
    torch.testing.assert_close(*found)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a kernel of oneDNN's")
def test_an_lstm_keeps_what_its_backward_reads():
    layer = torch.nn.LSTM(3, 4)
    gm, inputs = _lstm_graph(layer)
    joint = to_joint(gm, inputs)
    forward = joint.program.graph.find_nodes(
        op="call_function", target=torch.ops.plait_fx_passes.mkldnn_rnn_layer.default
    )
    assert len(forward) == 1
    assert forward[0].meta["val"][3].numel() > 0
    parts = partition(joint)
    halves = parts.forward.module(), parts.backward.module()
    results = wrap_training(joint, parts, *halves, gm)(*inputs)
    expected = gm(*inputs)
    torch.testing.assert_close(results, expected)
    found = torch.autograd.grad(results.sin().sum(), [*layer.parameters()])
    wanted = torch.autograd.grad(expected.sin().sum(), [*layer.parameters()])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(to_aten(gm, inputs).module()(*inputs), [expected])


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a kernel of oneDNN's")
def test_an_lstm_over_symbolic_lengths_is_refused_in_training():
    weights = [each.detach() for each in torch.nn.LSTM(3, 4).parameters()]

    def program(x, hidden):
        sizes = (False, [], 2, 4, 1, True, False, False, True)
        return torch.ops.aten.mkldnn_rnn_layer(x, *weights, hidden, hidden, *sizes)[0]

    graph = fx.Graph()
    nodes = [graph.placeholder("x"), graph.placeholder("hidden")]
    graph.output(graph.call_function(program, tuple(nodes)))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    lengths = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.randn(5, 2, 3, requires_grad=True), symbolic_context=lengths)
    with pytest.raises(AtenTraceError, match="of fixed sizes"):
        to_joint(gm, [x, mode.from_tensor(torch.zeros(2, 4))])


def _lstm_graph(layer):
    def program(x, hidden, cell, *parameters):
        return torch._VF.lstm(x, (hidden, cell), parameters, True, 1, 0.0, True, False, False)[0]

    inputs = torch.randn(5, 2, 3), torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), *layer.parameters()
    graph = fx.Graph()
    nodes = [graph.placeholder(f"arg{n}") for n in range(len(inputs))]
    graph.output(graph.call_function(program, tuple(nodes)))
    return fx.GraphModule(torch.nn.Module(), graph), inputs
