"""`cond`, `while_loop`, `map` and `scan`: traced as the Python that they mean, with gradients."""

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


PROGRAMS = [
    (branches, branches_in_python, 1),
    (nested_branches, nested_branches_in_python, 2),
    (counted_loop, counted_loop_in_python, 0),
    (loop_on_values, loop_on_values_in_python, 9),
    (mapped, mapped_in_python, 0),
    (scanned, scanned_in_python, 0),
]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("function", "meant", "breaks"), PROGRAMS, ids=[f.__name__ for f, _, _ in PROGRAMS]
)
def test_they_compute_what_they_mean(function, meant, breaks, gradients):
    compiled = plait.compile(function)
    for sign in (1, -1, 2, -2):
        x = torch.linspace(0.1, 2, 16).view(4, 4).mul(sign).requires_grad_(gradients)
        found, wanted = compiled(x), meant(x)
        torch.testing.assert_close(found, wanted)
        results = [pytree.tree_leaves(each) for each in (found, wanted)]
        assert [r.stride() for r in results[0]] == [r.stride() for r in results[1]]
        if gradients:
            needs = [[r for r in each if r.requires_grad] for each in results]
            sums = (sum(r.square().sum() for r in each) for each in needs)
            both = [torch.autograd.grad(s, (x, WEIGHT), allow_unused=True) for s in sums]
            for one, other in zip(*both, strict=True):
                torch.testing.assert_close(one, other)
    assert len(plait.report(compiled).breaks) <= breaks


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
