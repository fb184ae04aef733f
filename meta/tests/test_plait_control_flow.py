"""`cond`, `while_loop`, `map` and `scan`: one graph that calls compiled bodies, with gradients."""

import functools
import subprocess
import sys

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree

import plait

WEIGHT = torch.nn.Parameter(torch.eye(4) * 0.5 + 0.1)


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: x @ WEIGHT, lambda x: x.sin() + WEIGHT, (x * 2,)) * 3


def branches_in_python(x):
    y = x * 2
    return (y @ WEIGHT if x.sum() > 0 else y.sin() + WEIGHT) * 3


def nested_branches(x):
    def inner(x):
        return torch.cond(x[0, 0] > 1, lambda x: x + 1, lambda x: x - 1, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.cos(), (x,))


def nested_branches_in_python(x):
    return (x + 1 if x[0, 0] > 1 else x - 1) if x.sum() > 0 else x.cos()


def counted_loop(x):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x @ WEIGHT), (torch.tensor(0), x))


def counted_loop_in_python(x):
    return torch.tensor(3), x @ WEIGHT @ WEIGHT @ WEIGHT


def loop_on_values(x):
    (x,) = while_loop(lambda x: x.abs().sum() < 60, lambda x: (x * 1.5 + 0.1,), (x,))
    return x + 1


def loop_on_values_in_python(x):
    while x.abs().sum() < 60:
        x = x * 1.5 + 0.1
    return x + 1


def mapped(x):
    return map_rows(lambda row, w: {"a": row["x"].sin() @ w, "b": row["x"].sum()}, {"x": x}, WEIGHT)


def mapped_in_python(x):
    return {"a": x.sin() @ WEIGHT, "b": x.sum(1)}


def scanned(x):
    def step(carry, row):
        state = torch.tanh(carry["s"] @ WEIGHT + row)
        return {"s": state}, [state * 2, row + 1]

    return scan(step, {"s": x[0]}, x, reverse=True)


def scanned_in_python(x):
    state, rows = x[0], []
    for row in x.flip(0):
        state = torch.tanh(state @ WEIGHT + row)
        rows.append(state * 2)
    return {"s": state}, [torch.stack(rows).flip(0), x + 1]


def branches_in_steps(x):
    def step(carry, row):
        state = torch.cond(row.sum() > 0, lambda c, r: c + r, lambda c, r: c * r, (carry, row))
        return state, state.tanh()

    return scan(step, x[:, 0] * 1, x, dim=1)


def branches_in_steps_in_python(x):
    state, rows = x[:, 0], []
    for row in x.unbind(1):
        state = state + row if row.sum() > 0 else state * row
        rows.append(state.tanh())
    stacked = torch.stack(rows)
    return state, stacked.movedim(0, 1) if is_moved_back() else stacked


@functools.cache
def is_moved_back():
    """Whether `scan` gives its rows along the dimension that it took them from, or along the
    first, as that of torch 2.11 does."""
    _, rows = scan(lambda c, row: (c + row, c * row), torch.zeros(2), torch.zeros(2, 3), dim=1)
    return rows.shape == (2, 3)


def steps_in_a_loop(x):
    def body(n, x):
        return n + 1, scan(lambda c, row: (c * 0.5 + row, c - row), x[0] @ WEIGHT, x)[1]

    return while_loop(lambda n, x: (n < 3) & (x.sum() < 90), body, (torch.tensor(0), x))


def steps_in_a_loop_in_python(x):
    n = torch.tensor(0)
    while n < 3 and x.sum() < 90:
        carry, rows = x[0] @ WEIGHT, []
        for row in x:
            rows.append(carry - row)
            carry = carry * 0.5 + row
        n, x = n + 1, torch.stack(rows)
    return n, x


def mapped_branches(x):
    def of_row(row):
        return torch.cond(row.sum() > 0, lambda r: r @ WEIGHT, lambda r: r.cos(), (row,))

    return map_rows(of_row, x)


def mapped_branches_in_python(x):
    return torch.stack([row @ WEIGHT if row.sum() > 0 else row.cos() for row in x])


PROGRAMS = [
    (branches, branches_in_python),
    (nested_branches, nested_branches_in_python),
    (counted_loop, counted_loop_in_python),
    (loop_on_values, loop_on_values_in_python),
    (mapped, mapped_in_python),
    (scanned, scanned_in_python),
    (branches_in_steps, branches_in_steps_in_python),
    (steps_in_a_loop, steps_in_a_loop_in_python),
    (mapped_branches, mapped_branches_in_python),
]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("function", "meant"), PROGRAMS, ids=[function.__name__ for function, _ in PROGRAMS]
)
@pytest.mark.sampled(2)
def test_they_compute_what_they_mean(function, meant, gradients):
    compiled = plait.compile(function, fullgraph=True)
    for sign in (1, -1, 2, -2):
        x = torch.linspace(0.1, 2, 16).view(4, 4).mul(sign).requires_grad_(gradients)
        found, wanted = compiled(x), meant(x)
        torch.testing.assert_close(found, wanted)
        results = [pytree.tree_leaves(each) for each in (found, wanted)]
        assert [r.stride() for r in results[0]] == [r.stride() for r in results[1]]
        if gradients:
            needs = [[r for r in each if r.requires_grad] for each in results]
            sums = (sum(r.square().sum() for r in each) for each in needs)
            asked = (x, WEIGHT)
            options = {"allow_unused": True, "materialize_grads": True}
            both = [torch.autograd.grad(s, asked, **options) for s in sums]
            for one, other in zip(*both, strict=True):
                torch.testing.assert_close(one, other)
    assert {graph.outcome for graph in plait.report(compiled).graphs} == {"compiled"}


def test_calls_go_the_same_ways_again():
    compiled = plait.compile(loop_on_values)
    x = torch.linspace(0.1, 2, 16).view(4, 4)
    compiled(x)
    graphs = len(plait.report(compiled).graphs)
    for _ in range(3):
        compiled(x)
    assert len(plait.report(compiled).graphs) == graphs


def test_a_branch_on_a_size_is_no_break():
    compiled = plait.compile(
        lambda x: torch.cond(x.shape[0] > 3, torch.sin, torch.cos, (x,)), dynamic=True
    )
    for size in (2, 3, 4, 5):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), x.sin() if size > 3 else x.cos())
    assert not plait.report(compiled).breaks


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cond(x > 0, torch.sin, torch.cos, (x,)),
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x, 2.0)),
        lambda x: torch.cond(x.sum() > 0, torch.sin, None, (x,)),
        lambda x: while_loop(lambda x: x.sum() < 1, None, (x,)),
        lambda x: map_rows(torch.sin, x[:0]),
        lambda x: scan(lambda c, x: (c, x), x[0], x[:0]),
    ],
    ids=["predicate", "operand", "branch", "body", "empty map", "empty scan"],
)
def test_what_eager_refuses_is_refused(program):
    raised = []
    for function in (program, plait.compile(program)):
        with pytest.raises(Exception) as error:  # the next lines compare them
            function(torch.ones(3))
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]


def changes(x):
    return x.add_(1) * 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cond(x.sum() > 0, lambda x: x, torch.cos, (x,)),
        lambda x: torch.cond(x.sum() > 0, changes, torch.cos, (x,)),
        lambda x: torch.cond(x.sum() > 0, torch.sum, torch.cos, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda x: x.int(), torch.cos, (x,)),
        lambda x: while_loop(lambda x: x.sum() < 9, lambda x: (x.double(),), (x,)),
        lambda x: scan(lambda c, row: (c + row, row), x[0] * 1, x),
        lambda x: scan(lambda c, row: (torch.cat([c, row]), row + 1), x[:1], x.view(3, 1)),
    ],
    ids=["returned", "changed", "shape", "dtype", "loop", "returned row", "growing"],
)
def test_what_bodies_must_not_do_is_refused_as_in_eager(program):
    raised = []
    for function in (program, plait.compile(program)):
        with pytest.raises(Exception) as error:  # the next lines compare them
            function(torch.ones(3))
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]


def test_long_scans_compile_as_short_ones():
    graphs = []
    for length in (2, 512):
        compiled = plait.compile(scanned, fullgraph=True)
        x = torch.linspace(-1, 1, length * 4).view(length, 4)
        torch.testing.assert_close(compiled(x), scanned_in_python(x))
        graphs.append(len(plait.report(compiled).graphs))
    assert graphs == [2, 2]  # the function and the step


@pytest.mark.parametrize("function", [nested_branches, branches_in_steps, loop_on_values])
def test_they_compile_once_for_open_sizes(function):
    meant = dict(PROGRAMS)[function]
    compiled = plait.compile(function, fullgraph=True, dynamic=True)
    counts = []
    for length in (4, 6, 3, 9):
        x = torch.linspace(-1, 1.4, length * 4).view(length, 4)
        torch.testing.assert_close(compiled(x), meant(x))
        counts.append(len(plait.report(compiled).graphs))
    assert counts[1] == counts[-1]


def test_bodies_run_in_the_modes_of_their_place():
    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.cond(x.sum() > 0, lambda: x @ WEIGHT, lambda: WEIGHT @ x)
        with torch.no_grad():
            z = torch.cond(x.sum() > 0, lambda: x @ WEIGHT, lambda: WEIGHT @ x)
        return y, z

    compiled = plait.compile(function, fullgraph=True)
    for sign in (1, -1):
        x = torch.linspace(0.1, 2, 16).view(4, 4).mul(sign)
        y, z = compiled(x)
        meant = x @ WEIGHT if sign == 1 else WEIGHT @ x
        assert y.dtype is torch.bfloat16
        assert (y.requires_grad, z.requires_grad) == (True, False)
        torch.testing.assert_close(z, meant.detach())
        torch.testing.assert_close(y.float(), meant, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("gradients", [False, True])
def test_random_numbers_are_those_of_eager(gradients):
    def function(x):
        y = torch.cond(x.sum() > 0, lambda: torch.rand_like(x) * x, lambda: x * 2)
        y = y + x * scan(lambda c, row: (c + torch.rand(4), c * row), x[0] * 1, x)[1]
        (y,) = while_loop(
            lambda y: y.abs().sum() < 90, lambda y: (y * 2 * torch.rand(4) + y,), (y,)
        )
        return map_rows(lambda row: torch.dropout(row, 0.5, True), y) * torch.rand(4)

    def meant(x):
        y = torch.rand_like(x) * x if x.sum() > 0 else x * 2
        carry, rows = x[0], []
        for row in x:
            rows.append(carry * row)
            carry = carry + torch.rand(4)
        y = y + x * torch.stack(rows)
        while y.abs().sum() < 90:
            y = y * 2 * torch.rand(4) + y
        return torch.stack([torch.dropout(row, 0.5, True) for row in y]) * torch.rand(4)

    compiled = plait.compile(function, fullgraph=True)
    for sign in (1, -1):
        x = torch.linspace(0.1, 2, 16, dtype=torch.float64).view(4, 4).mul(sign)
        x.requires_grad_(gradients)
        found = []
        for each in (compiled, meant):
            torch.manual_seed(3)
            result = each(x)
            after = torch.rand(())
            found.append([result, after])
            if gradients:
                (first,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
                found[-1] += [first, *torch.autograd.grad(first.square().sum(), x)]
                found[-1].append(torch.rand(()))
        torch.testing.assert_close(*found)


@pytest.mark.slow
def test_torchs_compiler_is_not_imported():
    code = """if True:
        import sys, torch, plait
        from torch._higher_order_ops.while_loop import while_loop
        def f(x):
            x = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
            return while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (x,))
        plait.compile(f)(torch.randn(4))
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_whole_training_step_is_one_graph():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(x):
        y = torch.cond(x.sum() > 0, lambda: model(x).tanh(), lambda: model(x.sin()))
        return scan(lambda c, row: (c * 0.5 + row, c * row), y[0] * 1, y)[1].square().sum()

    def step(x):
        optimizer.zero_grad()
        found = loss(x)
        found.backward()
        optimizer.step()
        return found.detach()

    def meant(x):
        y = model(x).tanh() if x.sum() > 0 else model(x.sin())
        carry, rows = y[0], []
        for row in y:
            rows.append(carry * row)
            carry = carry * 0.5 + row
        return torch.stack(rows).square().sum()

    compiled = plait.compile(step)
    for sign in (1, -1, 1):
        x = torch.linspace(-0.5, 1, 12).view(3, 4) * sign
        model.zero_grad()
        wanted = meant(x)
        gradients = torch.autograd.grad(wanted, [*model.parameters()])
        before = [each.detach().clone() for each in model.parameters()]
        torch.testing.assert_close(compiled(x), wanted.detach())
        for now, was, gradient in zip(model.parameters(), before, gradients, strict=True):
            torch.testing.assert_close(now.detach(), was - 0.1 * gradient)
    assert not plait.report(compiled).breaks


def turned(h, xs):
    """The gradient of what a step is handed lies in memory by columns."""

    def step(h, x):
        h = (h.t().sin() * x).contiguous()
        return h, h.sum(0)

    return scan(step, h, xs)


def test_gradients_that_are_handed_on_may_lie_otherwise():
    h, xs = (torch.randn(size, requires_grad=True) for size in ((4, 4), (5, 4, 4)))
    compiled = plait.compile(turned)
    results = []
    for call in (compiled, turned):
        last, sums = call(h, xs)
        loss = (last * torch.linspace(-1, 1, 16).view(4, 4)).sum() + sums.cos().sum()
        results.append(torch.autograd.grad(loss, [h, xs]))
    torch.testing.assert_close(*results)
    assert not any(graph.run_failures for graph in plait.report(compiled).graphs)
