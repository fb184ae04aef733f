"""Sizes that depend on data."""

from __future__ import annotations

import torch
from torch import fx

from plait_utils.data_sizes import data_symbols, formula, gives_sizes, is_of_data, sizes_in
from plait_utils.draws import NODE, last_node
from plait_utils.fake import FakeMode
from plait_utils.shape_environment import make_environment


def graph_of_values(**values):
    """A graph whose nodes have these values: each but the first is computed of the one before."""
    graph, last = fx.Graph(), None
    for name, value in values.items():
        last = graph.placeholder(name) if last is None else graph.call_function(len, (last,))
        last.meta["val"] = value
    return list(graph.nodes)


def test_what_gives_a_size_is_told_from_what_has_one():
    with FakeMode(make_environment(lambda guard: None)):
        x = torch.empty(6)
        chosen = torch.masked_select(x, x > 0)
        doubled = chosen * 2
        several = [doubled, chosen.shape[0] + 1]
    nodes = graph_of_values(x=x, chosen=chosen, doubled=doubled, several=several)
    assert list(map(gives_sizes, nodes)) == [False, True, False, False]
    (symbol,) = data_symbols(several)
    assert is_of_data(symbol)
    assert [formula(size) for size in sizes_in(several)] == [symbol, symbol + 1]
    assert not data_symbols((x, 3, None))


def test_a_size_that_was_assumed_equal_to_a_number_is_still_one():
    with FakeMode(make_environment(lambda guard: None)):
        x = torch.empty(6)
        chosen = torch.masked_select(x, x > 0)
        (symbol,) = data_symbols(chosen)
        torch._check(chosen.shape[0] == 6)
        assert data_symbols(chosen) == {symbol}


def test_an_error_says_how_far_a_graph_had_run():
    error, other = ValueError(), RuntimeError()
    setattr(error, NODE, "add_1")
    other.__cause__ = error
    assert last_node(other) == "add_1"
    assert last_node(RuntimeError()) is None
