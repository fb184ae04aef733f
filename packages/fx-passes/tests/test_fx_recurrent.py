"""Recurrent layers and cells are recorded step by step: eager's bits, and no write in place."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import check_program
from torch import fx, nn

WRITES = ("slice_scatter", "select_scatter", "copy")


def called(layer, count, *, is_pair=False):
    """A graph that calls `layer` with `count` inputs, the last two as a pair."""
    root = nn.Module()
    root.inner = layer
    graph = fx.Graph()
    given = [graph.placeholder(f"x{number}") for number in range(count)]
    arguments = (*given[:-2], (given[-2], given[-1])) if is_pair else tuple(given)
    graph.output(graph.call_module("inner", arguments))
    return fx.GraphModule(root, graph)


def writes(graph):
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return [name for name in names if any(word in name for word in WRITES)]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gru_of_several_layers_has_the_bits_of_eager(bias, bidirectional, batch_first):
    layer = nn.GRU(
        5, 4, num_layers=2, bias=bias, bidirectional=bidirectional, batch_first=batch_first
    )
    state = torch.randn(4 if bidirectional else 2, 3, 4)
    sequence = torch.randn(3, 6, 5) if batch_first else torch.randn(6, 3, 5)
    graph = check_program(called(layer.eval(), 2), [sequence, state], tolerance=0)
    assert writes(graph) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_and_no_state_and_no_batch(dtype):
    layer = nn.GRU(5, 4).to(dtype).eval()
    for shape in ((6, 3, 5), (6, 5), (1, 1, 5)):
        check_program(called(layer, 1), [torch.randn(shape, dtype=dtype)], tolerance=0)


@pytest.mark.parametrize(("bias", "width"), [(False, 4), (True, 5)])
def test_cells_have_the_bits_of_eager(bias, width):
    x, state, memory = torch.randn(3, 5), torch.randn(3, width), torch.randn(3, width)
    gru = check_program(called(nn.GRUCell(5, width, bias), 2), [x, state], tolerance=0)
    lstm = nn.LSTMCell(5, width, bias)
    cell = check_program(called(lstm, 3, is_pair=True), [x, state, memory], tolerance=0)
    assert writes(gru) == writes(cell) == []


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_between_layers_draws_what_eager_draws(dropout):
    layer = nn.GRU(5, 4, num_layers=3, dropout=dropout).train()
    graph = check_program(called(layer, 1), [torch.randn(6, 3, 5)], tolerance=0)
    draws = [node for node in graph.graph.nodes if "bernoulli" in str(node.target)]
    assert len(draws) == (2 if dropout else 0)
