"""Gradients that are differentiated share nodes with the program: what frees one frees both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from plait_fx_passes import GradientProgram, partition, to_joint, wrap_training

Program = Callable[..., object]


def _chain(x: Tensor, w: Tensor) -> Tensor:
    return (x.exp() @ w).sin()


def _two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x.exp() * w).sin(), (x.tanh() + w).exp()


def _polynomial(x: Tensor, w: Tensor) -> Tensor:
    return x * x * w


def _compiled(gm: fx.GraphModule, inputs: list[Tensor], *, with_gradients: bool) -> Program:
    joint = to_joint(gm, inputs)
    parts = partition(joint)

    def gradients(made: GradientProgram) -> Program | None:
        return _compiled(made.program, list(made.examples), with_gradients=True)

    return wrap_training(
        joint, parts, parts.forward.module(), parts.backward.module(), gm,
        compile_gradients=gradients if with_gradients else None,
    )  # fmt: skip


ORDERS = {
    "the program first": ("y", "g"),
    "the gradient first": ("g", "y"),
    "two gradients": ("g", "h"),
    "kept, then freed": ("g keep", "y keep", "g", "y"),
    "by one input": ("g to w", "y to x"),
    "the program by one input": ("y to w", "g"),
    "a new gradient": ("g", "new"),
}


def _observe(run: Program, order: tuple[str, ...]) -> list[object]:
    x = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3).requires_grad_()
    w = torch.linspace(0.5, 2, 9, dtype=torch.float64).view(3, 3).requires_grad_()
    found = run(x, w)
    outputs = found if isinstance(found, tuple) else (found,)
    y = sum(each.sum() for each in outputs)
    assert isinstance(y, Tensor)
    sums = {"y": y}
    for name, leaf in (("g", x), ("h", w)):
        gradient, = torch.autograd.grad(y, leaf, create_graph=True)  # fmt: skip
        sums[name] = (gradient * gradient).sum()
    seen: list[object] = []
    for step in order:
        name, _, how = step.partition(" ")
        wanted = {"to x": [x], "to w": [w]}.get(how, [x, w])
        if name == "new":
            call = lambda: torch.autograd.grad(y, x, create_graph=True)
        else:
            call = lambda: torch.autograd.grad(
                sums[name], wanted, retain_graph=how == "keep", allow_unused=True
            )
        try:
            seen.append([None if g is None else g.tolist() for g in call()])
        except RuntimeError as error:
            seen.append("a second time" in str(error) or str(error))
    return seen


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("program", [_chain, _two, _polynomial])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_backwards_raise_where_eager_s_do(
    program: Program, order: str, with_gradients: bool
) -> None:
    inputs = [torch.zeros(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    run = _compiled(_graph(program), inputs, with_gradients=with_gradients)
    got, wanted = _observe(run, ORDERS[order]), _observe(program, ORDERS[order])
    assert [type(each) for each in got] == [type(each) for each in wanted], (got, wanted)
    for one, other in zip(got, wanted, strict=True):
        if isinstance(one, list):
            assert isinstance(other, list)
            for a, b in zip(one, other, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    torch.testing.assert_close(torch.tensor(a), torch.tensor(b))
        else:
            assert one == other


def _graph(program: Program) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(program, (graph.placeholder("x"), graph.placeholder("w"))))
    return fx.GraphModule(nn.Module(), graph)


def _writes(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        x.sigmoid_()
    return x * w, w.sin()


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("followed", [True, False])
def test_what_was_written_to_an_input_must_not_change_before_the_backward(
    used: int, changed: bool, followed: bool
) -> None:
    def seen(run: Program) -> object:
        leaf = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_(followed)
        w = torch.linspace(0, 2, 4, dtype=torch.float64).requires_grad_()
        x = leaf * 2
        found = run(x, w)
        assert isinstance(found, tuple)
        if changed:
            with torch.no_grad():
                x.mul_(2)
        wanted = [each for each in (leaf, w) if each.requires_grad]
        try:
            grads = torch.autograd.grad(found[used].sum(), wanted, allow_unused=True)
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)
        return [None if each is None else each.tolist() for each in grads]

    x = torch.zeros(4, dtype=torch.float64, requires_grad=followed)
    inputs = [x, torch.zeros(4, dtype=torch.float64, requires_grad=True)]
    assert seen(_compiled(_graph(_writes), inputs, with_gradients=True)) == seen(_writes)


def _parts(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.split(2)[0], x * w


def test_a_view_of_many_cannot_be_used_once_its_base_was_written_to() -> None:
    inputs = [torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for run in (_parts, _compiled(_graph(_parts), inputs, with_gradients=True)):
        x, w = (leaf * 2 for leaf in inputs)
        found = run(x, w)
        assert isinstance(found, tuple)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="is a view and its base or another view"):
            found[0].sum()


def test_gradients_of_a_count_are_as_in_eager():
    x = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    gm = fx.symbolic_trace(lambda x: (torch.norm(x, 0), x.exp().sum()))
    found = []
    for run in (gm, _compiled(gm, [x], with_gradients=True)):
        counted, other = run(x)
        kinds = {"create_graph": True, "allow_unused": True, "retain_graph": True}
        found.append([torch.autograd.grad(each, x, **kinds)[0] for each in (counted, other)])
    assert found[0][0] is None
    assert found[1][0] is None or not found[1][0].any()
    torch.testing.assert_close(found[1][1], found[0][1])
