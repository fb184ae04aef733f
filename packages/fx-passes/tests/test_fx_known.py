"""What is saved of a forward is not computed again where gradients are differentiated."""

from __future__ import annotations

import torch
from torch import fx

from plait_fx_passes import GradientProgram, partition, run_passes, to_joint, wrap_training

aten = torch.ops.aten


def _program() -> fx.GraphModule:
    def program(x, w, h):
        return ((x @ w).tanh() @ h).sin()

    return fx.symbolic_trace(program)


def _wrapped(gm, inputs, seen, known=None):
    recorded = to_joint(gm, inputs)
    joint = recorded.replace_graph(run_passes(recorded.flat()).graph)
    if known is not None:
        joint = known.used_in(joint)
    parts = partition(joint)
    seen.append(parts.forward)

    def compile_gradients(made: GradientProgram):
        return _wrapped(made.program, made.examples, seen, made.known)

    return wrap_training(
        joint, parts, parts.forward.module(), parts.backward.module(), gm,
        compile_gradients=compile_gradients,
    )  # fmt: skip


def _products(graph):
    return sum(node.target in (aten.mm.default, aten.addmm.default) for node in graph.graph.nodes)


def test_products_that_were_saved_are_not_computed_again():
    torch.manual_seed(0)
    inputs = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    gm, seen = _program(), []
    run = _wrapped(gm, inputs, seen)
    found = []
    for each in (gm, run):
        first = torch.autograd.grad(each(*inputs).square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(
            sum(g.square().sum() for g in first), inputs, create_graph=True
        )
        third = torch.autograd.grad(sum(g.square().sum() for g in second), inputs)
        found.append([*first, *second, *third])
    for got, wanted in zip(*reversed(found), strict=True):
        torch.testing.assert_close(got, wanted)
    forward, gradients = seen[0], seen[1]
    assert _products(forward) == 2
    assert _products(gradients) == 4  # two for each product's gradients, and none of the forward
