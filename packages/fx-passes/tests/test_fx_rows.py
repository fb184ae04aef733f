"""Gradients of embeddings that are added right to another gradient of the same weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from torch import nn

from plait_fx_passes import DEFAULT_PASSES, LAYOUT_PASSES, run_passes, to_joint, verify

aten = torch.ops.aten


class Tied(nn.Module):
    """A weight that embeds tokens and scores the next ones."""

    def __init__(self, padding=None, by_frequency=False) -> None:
        super().__init__()
        self.table = nn.Embedding(
            11, 6, padding, scale_grad_by_freq=by_frequency, dtype=torch.float64
        )

    def forward(self, tokens):
        return F.linear(self.table(tokens).sin(), self.table.weight).logsumexp(-1).sum()


class Twice(Tied):
    """Two embeddings of one weight, of which one is transposed, and a product."""

    def forward(self, tokens):
        rows = self.table(tokens) * self.table(tokens.t()).transpose(0, 1).cos()
        return F.linear(rows, self.table.weight).sin().sum()


def improved(module, tokens):
    recorded = to_joint(trace(module), [tokens])
    graph = run_passes(recorded.flat(), (*DEFAULT_PASSES, *LAYOUT_PASSES), verify_each=True)
    verify(graph)
    return recorded, graph


def targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("kind", [Tied, Twice])
def test_rows_are_added_to_the_other_gradient(kind):
    torch.manual_seed(0)
    module, tokens = kind(), torch.randint(0, 5, (3, 3))
    recorded, graph = improved(module, tokens)
    assert aten.index_add.default in targets(graph)
    kept = targets(graph).count(aten.embedding_dense_backward.default)
    assert kept == targets(recorded.flat()).count(aten.embedding_dense_backward.default) - (
        targets(graph).count(aten.index_add.default)
    )
    (wanted,) = torch.autograd.grad(module(tokens), module.table.weight)
    given = {"table.weight": module.table.weight.detach()}
    inputs = [given.get(getattr(source, "name", ""), tokens) for source in recorded.program.inputs]
    tangent = torch.ones((), dtype=torch.float64)
    *_, found = graph.module()(*inputs, tangent)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("options", [{"padding": 2}, {"by_frequency": True}])
def test_what_leaves_rows_out_or_scales_them_stays(options):
    _, graph = improved(Tied(**options), torch.randint(0, 5, (3, 3)))
    assert aten.index_add.default not in targets(graph)


def test_a_gradient_of_rows_alone_stays_and_rewrites_take_fuel():
    module, tokens = Tied(), torch.randint(0, 5, (3, 3))
    recorded = to_joint(trace(module), [tokens])
    without = run_passes(recorded.flat(), LAYOUT_PASSES, fuel=0)
    assert aten.index_add.default not in targets(without)
    alone = trace(lambda weight: F.embedding(tokens, weight).sin().sum())
    alone = run_passes(to_joint(alone, [module.table.weight]).flat(), LAYOUT_PASSES)
    assert aten.index_add.default not in targets(alone)
