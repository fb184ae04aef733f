"""Changes that are no writes, and writes that are no changes to autograd."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from plait_fx_passes import AtenTraceError, print_aten, to_aten, to_joint, wrap_runtime


def graph_of(function, *names):
    """The function as a torch-level graph, in which each operation is a node."""
    graph = fx.Graph()
    proxies = [fx.Proxy(graph.placeholder(name)) for name in names]
    graph.output(function(*proxies).node)
    return fx.GraphModule(torch.nn.Module(), graph)


def run(function, *inputs):
    graph = to_aten(graph_of(function, *[f"x{n}" for n in range(len(inputs))]), inputs)
    return graph, wrap_runtime(graph, graph.module())(*inputs)


@pytest.mark.parametrize(
    "change", [lambda x: x[0].unsqueeze_(0), lambda x: x.view(4, 3).t_(), lambda x: x.detach().t_()]
)
def test_another_geometry_of_a_view_counts_as_a_change_of_the_input(change):
    mine, eager = torch.randn(3, 4), torch.randn(3, 4)
    graph, _ = run(change, mine)
    change(eager)
    assert graph.counted == (0,)
    assert "count %x0 as changed" in print_aten(graph)
    assert mine._version == eager._version


def test_what_is_no_change_of_the_input_is_not_counted():
    mine = torch.randn(3, 4)
    graph, _ = run(lambda x: x.data.t_(), mine)
    assert graph.counted == ()
    assert mine._version == 0
    graph, _ = run(lambda x: x.detach().data.mul_(2), mine)
    assert not graph.mutations[0].counted
    assert mine._version == 0
    graph, _ = run(lambda x: (x.data.mul_(2), x.mul_(1))[1], mine)
    assert graph.mutations[0].counted


def test_a_view_of_an_input_that_comes_to_need_gradients_is_refused():
    with pytest.raises(AtenTraceError, match="need gradients of its own"):
        to_joint(graph_of(lambda x: x[0].requires_grad_(), "x"), [torch.randn(3, 4)])


def test_one_of_several_results_may_get_another_geometry():
    x = torch.randn(3, 4)
    graph, found = run(lambda x: torch.topk(x, 1)[0].squeeze_(), x)
    assert graph.results[0].meta["val"].shape == (3,)
    torch.testing.assert_close(found, torch.topk(x, 1)[0].squeeze())


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: x[:, 1:].copy_(x[:, :-1]),
        lambda x, i: x[:, 1:].add_(x[:, :-1]),
        lambda x, i: x[:, :2].index_put_((i,), x[:2, :2]),
        lambda x, i: x.addmm_(x, x),
    ],
)
def test_reading_memory_while_it_is_written_is_refused(write):
    with pytest.raises(AtenTraceError, match="reads memory that it writes to"):
        run(write, torch.randn(4, 4), torch.tensor([1, 0]))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[:, 2:].copy_(x[:, :2]),
        lambda x: x[::2].mul_(x[1::2]),
        lambda x: x.mul_(x),
        lambda x: x.copy_(x),
        lambda x: x.fill_(x[0, 1]),
    ],
)
def test_reading_other_memory_or_element_by_element_is_not(write):
    mine = torch.randn(4, 4)
    eager = mine.clone()
    run(write, mine)
    write(eager)
    torch.testing.assert_close(mine, eager)


def test_views_that_autograd_lets_nobody_use_are_refused():
    def program(x):
        part = x.split(2)[0]
        x.fill_(0.5)
        return part

    with pytest.raises(AtenTraceError, match="lets nobody use"):
        to_joint(torch.fx.symbolic_trace(program), [torch.randn(4, 3, requires_grad=True)])


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("view", [lambda x: x.detach(), lambda x: x[1:], lambda x: x.t()])
def test_what_has_elements_is_not_resized(view):
    def program(x):
        out = x * 2
        seen = view(out)
        return torch.stack((torch.sum(x, 0, out=out), seen + 1))

    with pytest.raises(AtenTraceError, match="with elements"):
        run(program, torch.ones(3, 3))


@pytest.mark.parametrize("view", [lambda x: x.detach(), lambda x: x[1:], lambda x: x.view(0, 3)])
def test_views_of_what_is_resized_keep_their_shape(view):
    def program(x):
        out = x[:, :0] * 2
        seen = view(out)
        made = torch.mul(x, 2, out=out)
        return torch.cat((made.add_(1).flatten(), (seen + 1).flatten(), seen.flatten()))

    x = torch.ones(3, 3)
    _, found = run(program, x)
    torch.testing.assert_close(found, program(x))


@pytest.mark.parametrize("training", [False, True])
def test_what_an_operator_gives_beside_what_it_writes_lies_as_in_eager(training):
    x = torch.ones(3, 4).t()
    graph, found = run(lambda x: torch.nn.functional.rrelu(x, training=training), x)
    wanted = torch.nn.functional.rrelu(x, training=training)
    assert found.stride() == graph.results[0].meta["val"].stride() == wanted.stride()


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4)])
def test_an_out_without_elements_warns_of_nothing(shape, recwarn):
    x = torch.ones(shape)
    _, found = run(lambda x: torch.add(x, 1, out=x.new_empty(0)), x)
    torch.testing.assert_close(found, x + 1)
    assert not recwarn.list
