"""Checkpointed regions: computed again in the backward, with the numbers of the forward."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from test_fx_training import assert_same, both, compiled, leaf, parts_of
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from plait_fx_passes import AtenTraceError, to_joint

torch.fx.wrap("without_reentry")
torch.fx.wrap("with_reentry")
torch.fx.wrap("saving_products")
torch.fx.wrap("drawn_alike")
torch.fx.wrap("normalized")


def region(x, w):
    return F.dropout(torch.tanh(x @ w), 0.5).sin()


def without_reentry(x, w):
    return checkpoint(region, x, w, use_reentrant=False)


def with_reentry(x, w):
    return checkpoint(region, x, w, use_reentrant=True)


def keep_products(_context, op, *_args, **_kwargs):
    if op is torch.ops.aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def saving_products(x, w):
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
    return checkpoint(region, x, w, use_reentrant=False, context_fn=contexts)


def drawn_alike(x):
    def inner(x):
        return F.dropout(x, 0.5) * F.dropout(x, 0.5) * x

    return checkpoint(inner, x, use_reentrant=False)


def normalized(x, mean, var):
    def inner(x, mean, var):
        return F.batch_norm(x, mean, var, training=True).sin()

    return checkpoint(inner, x, mean, var, use_reentrant=False)


KINDS = {
    "without reentry": lambda x, w: without_reentry(x, w) * 2,
    "selective": lambda x, w: saving_products(x, w) * 2,
    "two regions": lambda x, w: without_reentry(without_reentry(x, w).cos(), w),
}


def make():
    return both(leaf(4, 5), leaf(5, 5))


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_those_of_eager(name):
    assert_same(KINDS[name], make)


@pytest.mark.parametrize("name", ["without reentry", "two regions"])  # eager refuses the other
def test_gradients_of_gradients_are_those_of_eager(name):
    assert_same(KINDS[name], make, twice=True)


def test_gradients_through_a_reentrant_region_are_those_of_eager():
    def program(x, w):
        return with_reentry(x, w) * 2

    _, inputs = make()
    found = []
    for run in (program, compiled(program, inputs)):
        torch.manual_seed(0)
        run(*inputs).square().sum().backward()
        found.append([each.grad for each in inputs])
        for each in inputs:
            each.grad = None
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    ("name", "saved"),
    [("without reentry", {"x", "w", "bernoulli"}), ("selective", {"x", "w", "bernoulli", "mm"})],
)
def test_what_a_region_computes_is_not_saved(name, saved):
    _, parts = parts_of(*_traced(KINDS[name]))
    kept = {node.name for node in parts.backward.graph.find_nodes(op="placeholder")}
    assert {each for each in kept if not each.startswith("tangent")} == saved


def test_the_generator_goes_on_as_in_eager():
    _, inputs = make()
    run = compiled(KINDS["without reentry"], inputs)
    after = []
    for each in (KINDS["without reentry"], run):
        torch.manual_seed(0)
        each(*inputs).sum().backward()
        after.append(torch.rand(()))
    assert after[0] == after[1]


def test_equal_calls_of_a_region_are_not_told_apart():
    with pytest.raises(AtenTraceError, match="several calls of the forward computed the same"):
        to_joint(*_traced(lambda x: drawn_alike(x) * 2, leaf(3)))


def _traced(program, *inputs):
    return trace(program), list(inputs) or make()[1]


def test_a_region_that_writes_to_an_input_runs_as_captured():
    inputs = [torch.randn(4, 3, requires_grad=True), torch.zeros(3), torch.ones(3)]
    with pytest.raises(AtenTraceError, match="backward writes to an input"):
        to_joint(trace(lambda x, mean, var: normalized(x, mean, var)), inputs)
