"""What outputs and writes are to autograd: detached or not, views of which input, in which mode."""

import pytest
import torch
from fx_oracle import trace

from plait_fx_passes import Followed, InputView, Mutation, run_passes, to_aten, wrap_runtime


def _compiled(program, inputs):
    graph = run_passes(to_aten(trace(program), inputs), verify_each=True)
    return wrap_runtime(graph, graph.module())


def _describe(tensors, inputs):
    """Whether each requires grad, is a view, of which input, and is an input."""

    def position(tensor):
        return next((n for n, each in enumerate(inputs) if each is tensor), None)

    return [
        (t.requires_grad, t.is_leaf, t._is_view(), position(t._base), position(t), t.tolist())
        for t in tensors
    ]


def _relations(program, run, make, grad):
    inputs = make()
    with torch.set_grad_enabled(grad):
        outputs = run(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return _describe([*inputs, *outputs], inputs)


def _parameter():
    return (torch.nn.Parameter(torch.arange(20.0).view(4, 5)),)


def _plain():
    return (torch.arange(20.0).view(4, 5),)


def _no_grad(program):
    def guarded(*inputs):
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        result = program(*inputs)
        torch._C._set_grad_enabled(before)
        return result

    return guarded


VIEWS = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "view of detach": lambda x: x.detach()[1:],
    "detach of view": lambda x: x[1:].detach(),
    "other view of detach": lambda x: (x.detach(), x.detach().t()),
    "bits of detach": lambda x: x.detach().view(torch.int32),
}


@pytest.mark.parametrize("make", [_parameter, _plain])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_what_is_detached_stays_so(name, make, grad):
    program = VIEWS[name]
    with torch.set_grad_enabled(grad):
        run = _compiled(program, make())
    assert _relations(program, run, make, grad) == _relations(program, program, make, grad)


@pytest.mark.parametrize("make", [_parameter, _plain])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.view(-1),
        lambda x: (x[1:], x.t()),
        lambda x: x,
        lambda x: x.unbind(0),
    ],
)
def test_views_under_no_grad_require_none(program, make, grad):
    def run_under(run):
        inputs = make()
        with torch.no_grad():
            outputs = run(*inputs)
        return _describe([outputs] if isinstance(outputs, torch.Tensor) else outputs, inputs)

    with torch.no_grad():
        run = _compiled(program, make())
    assert run_under(run) == run_under(program)


def test_a_mode_that_the_program_sets_holds_for_its_views():
    def program(x):
        torch._C._set_grad_enabled(False)
        view = x[1:]
        torch._C._set_grad_enabled(True)
        return view, x[2:]

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    first = graph.call_function(torch.narrow, (x, 0, 1, 3))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    second = graph.call_function(torch.narrow, (x, 0, 2, 2))
    graph.output((first, second))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    aten = to_aten(gm, _parameter())
    assert [source.followed for source in aten.outputs] == [Followed.NOT_LAST, Followed.ALWAYS]
    run = wrap_runtime(aten, aten.module())
    assert torch.is_grad_enabled()
    assert _relations(gm, run, _parameter, True) == _relations(gm, program, _parameter, True)


def test_a_parameter_is_written_without_gradients():
    (parameter,) = _parameter()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_method("add_", (x, 1))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output(x)
    aten = to_aten(torch.fx.GraphModule(torch.nn.Module(), graph), [parameter])
    assert aten.mutations == (Mutation(0, 0, grad=False),)
    result = wrap_runtime(aten, aten.module())(parameter)
    assert result is parameter
    assert result.is_leaf
    assert result.flatten().tolist() == [float(n + 1) for n in range(20)]


def test_data_of_a_parameter_is_written_with_gradients_enabled():
    (parameter,) = _parameter()
    run = _compiled(lambda x: x.data.mul_(2), [parameter])
    run(parameter)
    assert parameter.is_leaf
    assert parameter.flatten().tolist() == [2.0 * n for n in range(20)]


def test_a_view_is_taken_from_the_input_that_it_is_a_view_of():
    """``p`` and ``p.data`` share memory that is written, but not their relation to autograd."""

    def program(x, y):
        return x.add_(1), y.view(-1), x.view(-1)

    def make():
        (parameter,) = _parameter()
        return parameter, parameter.data

    with torch.no_grad():
        graph = to_aten(trace(program), make())
        run = wrap_runtime(graph, graph.module())
    views = [source for source in graph.outputs if isinstance(source, InputView)]
    assert [view.input for view in views] == [1, 0]
    assert _relations(program, run, make, False) == _relations(program, program, make, False)


def test_views_of_overlapping_inputs_lie_where_eager_puts_them():
    def program(x, y):
        x.add_(1)
        return y[1:], x[1:].as_strided((2,), (1,)), y.view(-1)

    def make():
        memory = torch.arange(10.0)
        return memory[2:5], memory[3:6]

    run = _compiled(program, make())
    assert _relations(program, run, make, True) == _relations(program, program, make, True)


def test_a_view_made_before_its_input_is_turned_keeps_its_own_strides():
    def program(x):
        before = x[1:]
        x.t_()
        return before, x[1:], x

    run = _compiled(program, _plain())
    (expected,), (actual,) = _plain(), _plain()
    wanted, got = program(expected), run(actual)
    assert [t.tolist() for t in got] == [t.tolist() for t in wanted]
    assert [t.stride() for t in got] == [t.stride() for t in wanted]
    assert got[2] is actual


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (y := x.t(), y.unbind()[-1], y.split(1)[0][0]),
        lambda x: (y := x.expand(2, 3, 3), y.unbind()[-1]),
        lambda x: (y := x * 2, y.unbind(1)[0], y.unbind(1)[1][1:]),
    ],
    ids=["of a view", "of an expanded input", "of a result"],
)
def test_parts_of_a_returned_view_lie_behind_it(program):
    """Hooks on the view get what comes from the parts, to which nobody may write."""

    def observe(run):
        torch.manual_seed(0)
        leaf = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
        whole, *parts = run(leaf * 1.5)
        seen: list[torch.Tensor] = []
        whole.register_hook(lambda given: seen.append(given.clone()) or given * 2)
        sum((each * each).sum() for each in (whole, *parts) if each.requires_grad).backward()
        with pytest.raises(RuntimeError, match="multiple views"):
            parts[0].mul_(2)
        return leaf.grad, seen

    torch.manual_seed(0)
    run = _compiled(program, [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) * 1.5])
    torch.testing.assert_close(observe(run), observe(program))
