"""Outputs from which others are computed: gradients asked of them, and what hooks on them see."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from test_fx_training import compiled, parts_of

from plait_fx_passes import AtenTraceError, to_joint, wrap_training


def one(x):
    y = x * 2
    return y, y.sin()


def written(x):
    y = x * 2
    y.add_(1)
    y.relu_()
    return y, (y.sin() * x).sum()


def written_through_a_view(x):
    y = x * 2
    y.select(0, 0).fill_(1)
    return y, y.sin()


def rows(x):
    base = x.exp()
    first, second = base.select(0, 0), base.select(0, 1)
    return first, second, (first.sin() * 3).sum()


def row_of_input(x):
    row = x.select(0, 0)
    return row, row.sin().sum(), (x * row).sum()


def chain(x):
    a = x.sin()
    b = a.cos()
    return a, b, (b * a).sum()


def random_numbers(x):
    h = F.dropout(x, 0.5)
    h = h * h
    z = F.dropout(h, 0.5)
    return h, (z * z).sum()


def keys_and_values(x):
    q, k, v = torch.cat([x, x * 2, x.sin()], -1).split(3, -1)
    k = k.view(2, 3, 1).transpose(0, 1)
    v = v.view(2, 3, 1).transpose(0, 1)
    return k, v, (q.view(2, 3, 1).transpose(0, 1) * k).softmax(0) * v


def view_of_input(x):
    h = x.view(3, 2)
    w = h * 2
    w.mul_(h)
    return h, w, w.exp().sum()


def under_another_name(x):
    y = x * 3
    return y.contiguous(), (y * y).sum()


def returned_twice(x):
    y = x.sin()
    return y, y, y.cos()


def one_of_several(x):
    part = x.unbind()[-1]
    return part, part + 1.5, part.exp().sum()


def two_for_two(x):
    a, b = x.sin(), x.cos()
    return a, b, (a * b).sum(), (a + b).sum()


def detached(x):
    a = x.sin()
    b = a.detach() * 2
    return a, b, (a * b).sum()


PROGRAMS = [
    *(one, written, written_through_a_view, rows, row_of_input, chain, random_numbers),
    *(keys_and_values, view_of_input, under_another_name, returned_twice, two_for_two, detached),
]


def backward(x, outputs):
    outputs[-1].sum().backward()
    return [x.grad]


def by_outputs(x, outputs):
    wanted = [each for each in outputs[:-1] if each.requires_grad]
    return torch.autograd.grad(outputs[-1].sum(), wanted, allow_unused=True)


def by_all(x, outputs):
    wanted = [x, *(each for each in outputs[:-1] if each.requires_grad)]
    return torch.autograd.grad(outputs[-1].sum(), wanted, allow_unused=True)


def hooks(x, outputs):
    seen = []
    for each in outputs[:-1]:
        if each.requires_grad:
            each.register_hook(lambda given: seen.append(given.clone()))
    outputs[-1].sum().backward()
    return [x.grad, *seen]


def changing_hook(x, outputs):
    outputs[0].register_hook(lambda given: given * 3)
    sum(each.sum() for each in outputs).backward()
    return [x.grad]


def hook_on_what_is_dropped(x, outputs):
    outputs = list(outputs)
    outputs[0].register_hook(lambda given: given * 3)
    last = outputs[-1]
    outputs.clear()
    last.sum().backward()
    return [x.grad]


def retained(x, outputs):
    outputs = [each for each in outputs if each.requires_grad]
    for each in outputs[:-1]:
        each.retain_grad()
    outputs[-1].sum().backward()
    return [x.grad, *(each.grad for each in outputs[:-1])]


def from_all(x, outputs):
    sum((each * each).sum() for each in outputs).backward()
    return [x.grad]


def second(x, outputs):
    wanted = [x, *(each for each in outputs[:-1] if each.requires_grad)]
    first = torch.autograd.grad(
        outputs[-1].sum(), wanted, create_graph=True, allow_unused=True, materialize_grads=True
    )
    loss = sum((each * each).sum() for each in first)
    return [*first, *torch.autograd.grad(loss, wanted, allow_unused=True)]


def one_after_the_other(x, outputs):
    outputs[-1].sum().backward(retain_graph=True)
    outputs[0].sum().backward()
    return [x.grad]


def through_what_is_freed(x, outputs):
    outputs[-1].sum().backward()
    outputs[0].sum().backward()
    return [x.grad]


def in_two_stages(x, outputs):
    (given,) = torch.autograd.grad(outputs[-1].sum(), outputs[0])
    return [given, *torch.autograd.grad(outputs[0], x, given)]


def of_the_input_alone(x, outputs):
    outputs[-1].sum().backward(inputs=[x])
    return [x.grad]


WAYS = [
    *(backward, by_outputs, by_all, hooks, changing_hook, hook_on_what_is_dropped),
    *(retained, from_all, second, one_after_the_other),
    *(through_what_is_freed, in_two_stages, of_the_input_alone),
]


def example():
    torch.manual_seed(3)
    return torch.randn(2, 3, dtype=torch.float64, requires_grad=True)


def outcome(run, way):
    x = example()
    try:
        return list(way(x, run(x)))
    except RuntimeError as error:
        return str(error)[:60]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.sampled(4)
def test_gradients_come_through_outputs(program, way):
    run = compiled(program, [example()])
    for _ in range(2):
        wanted, got = outcome(program, way), outcome(run, way)
        if isinstance(wanted, str) or isinstance(got, str):
            assert got == wanted
            continue
        assert [each is None for each in got] == [each is None for each in wanted]
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("program", [one, written, chain, random_numbers])
def test_hooks_on_nodes_see_what_comes_through_them(program):
    def hooked(x, outputs):
        outputs[0].grad_fn.register_prehook(lambda given: tuple(each * 3 for each in given))
        outputs[-1].sum().backward()
        return [x.grad]

    torch.testing.assert_close(
        outcome(compiled(program, [example()]), hooked), outcome(program, hooked)
    )


def test_second_gradients_through_a_hooked_output_that_was_dropped_are_refused():
    run = compiled(one, [example()])
    x = example()
    y, z = run(x)
    y.register_hook(lambda given: given * 3)
    del y
    with pytest.raises(RuntimeError, match="keep it until then"):
        torch.autograd.grad(z.sum(), x, create_graph=True)


@pytest.mark.parametrize("program", [chain, rows, row_of_input, keys_and_values])
@pytest.mark.parametrize("drops", [False, True])
def test_nothing_comes_to_an_output_that_nobody_looks_at(program, drops):
    """The fused backward runs, once."""
    runs = []

    def counted(graph):
        module = graph.module()

        def run(*values):
            runs.append(len(graph.results))
            return module(*values)

        return run

    gm = trace(program)
    joint, parts = parts_of(gm, [example()])
    run = wrap_training(joint, parts, parts.forward.module(), None, gm, compile_part=counted)
    x = example()
    outputs = list(run(x))
    last = outputs[-1].sum()
    if drops:
        outputs.clear()
    last.backward()
    assert runs == [1]
    torch.testing.assert_close(x.grad, torch.autograd.grad(program(x)[-1].sum(), x)[0])


def test_what_the_backward_holds_is_freed():
    gm = trace(chain)
    joint, parts = parts_of(gm, [example()])
    run = wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
    for looks in (False, True):
        x = example()
        outputs = run(x)
        if looks:
            outputs[0].retain_grad()
        call = outputs[-1].grad_fn.call
        outputs[-1].backward()
        assert call.before is None
        assert call.keeper is None
        assert call.left.held is None


def test_a_node_that_was_given_its_own_is_waited_for():
    """What two losses have in common is computed twice in the first step only."""
    runs = []

    def counted(graph):
        module = graph.module()

        def run(*values):
            runs.append(len(values))
            return module(*values)

        return run

    def program(x):
        h = x.sin()
        return h, h.exp().sum()

    gm = trace(program)
    joint, parts = parts_of(gm, [example()])
    run = wrap_training(joint, parts, parts.forward.module(), None, gm, compile_part=counted)
    counts = []
    for _ in range(3):
        x = example()
        h, loss = run(x)
        runs.clear()
        (h.square().sum() + loss).backward()
        counts.append(len(runs))
        other = example()
        h, loss = program(other)
        (h.square().sum() + loss).backward()
        torch.testing.assert_close(x.grad, other.grad)
    assert counts == [2, 1, 1]


def test_a_hook_is_not_called_for_a_result_that_no_gradient_reaches():
    run = compiled(lambda x: (x.sin(), x.cos()), [example()])
    x = example()
    one, other = run(x)
    one.register_hook(lambda given: pytest.fail("no gradient comes here"))
    other.sum().backward()


def test_a_write_after_others_were_computed_is_refused():
    def program(x):
        y = x * 2
        z = y + 1
        y.mul_(3)
        return y, z * y

    to_joint(trace(program), [example()])  # what is returned is not what z was computed from

    def inside(x):
        pair = torch.split(x * 2, [1, 1])
        return pair[0], torch.cat(pair).sin()

    with pytest.raises(AtenTraceError, match="one call within it returns"):
        to_joint(trace(inside), [example()])


def test_what_one_call_computes_cannot_be_told_apart():
    def inner(x):
        y = x * 2
        return y, y.sin()

    graph = torch.fx.Graph()
    pair = graph.call_function(inner, (graph.placeholder("x"),))
    parts = [graph.call_function(operator.getitem, (pair, n)) for n in range(2)]
    graph.output(tuple(parts))
    with pytest.raises(AtenTraceError, match="one call within it returns"):
        to_joint(torch.fx.GraphModule(torch.nn.Module(), graph), [example()])


@pytest.mark.parametrize(
    ("mark", "why"),
    [
        (lambda y: y.register_hook(torch.neg), "a hook or function of its own"),
        (torch.Tensor.retain_grad, "keeps the gradient of what it returns"),
    ],
)
def test_hooks_of_the_program_on_what_it_returns_are_refused(mark, why):
    """Those of the caller's, which come after them, see what they have made of the gradient."""

    def inner(x):
        y = x * 2
        mark(y)
        return y

    graph = torch.fx.Graph()
    graph.output((graph.call_function(inner, (graph.placeholder("x"),)),))
    with pytest.raises(AtenTraceError, match=why):
        to_joint(torch.fx.GraphModule(torch.nn.Module(), graph), [example()])


def test_a_view_of_a_whole_result_lies_behind_it():
    def program(x):
        deviation = x.std()
        return deviation.squeeze(), deviation

    run = compiled(program, [example()])
    torch.testing.assert_close(outcome(run, by_all), outcome(program, by_all))


def test_writes_carry_on_what_they_write():
    def program(x):
        y = x * 2
        z = torch.zeros_like(y)
        z.select(0, 0).copy_(y.select(0, 1))
        return y, z.sin()

    run = compiled(program, [example()])
    torch.testing.assert_close(outcome(run, by_all), outcome(program, by_all))


@pytest.mark.parametrize("order", [(0, 3), (1, 3), (0, 2, 3), (0, 1, 2, 3), (2, 3), (0, 2), (3,)])
def test_gradients_are_counted_once_whatever_was_given_before(order):
    def program(x, u, v, w):
        a = x * u
        b = a.sin() * v
        c = b.exp() * w
        return a, b, c, (c * a).sum()

    def make():
        torch.manual_seed(5)
        return [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(4)]

    run = compiled(program, make())
    for chosen in (order, (3,), (1, 3), order, (0, 1, 2, 3)):
        found = []
        for each in (program, run):
            inputs = make()
            outputs = each(*inputs)
            sum((outputs[n] ** 2).sum() for n in chosen).backward()
            found.append([each.grad for each in inputs])
        torch.testing.assert_close(found[1], found[0])


def test_gradients_of_a_view_of_an_input_whose_elements_share_memory():
    def program(x):
        view = x.t()[1:]
        return view, view.sin()

    def outcome_of(run):
        leaf = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
        x = leaf.expand(3, 4)
        view, sines = run(x)
        weights = torch.arange(9.0, dtype=torch.float64).view(3, 3)
        loss = (view * weights).sum() + (sines * weights.t()).sum()
        return torch.autograd.grad(loss, [x, leaf, view])

    run = compiled(program, [torch.ones(4, dtype=torch.float64, requires_grad=True).expand(3, 4)])
    torch.testing.assert_close(outcome_of(run), outcome_of(program))
