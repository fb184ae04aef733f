"""Matching takes work in proportion to the graph: counted in calls, which no noise touches."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import trace
from test_fx_growth import calls_of

from plait_fx_passes import (
    NUMERIC_PASSES,
    RewriteRule,
    Tensors,
    rule_pass,
    run_passes,
    to_aten,
)
from plait_fx_passes.patterns import EXACT_RULES, NUMERIC_RULES, matching, ordering

aten = torch.ops.aten
x, w = torch.randn(4, 4), torch.randn(4, 4)


def layers(number):
    """A long chain."""

    def program(x, w):
        for _ in range(number):
            x = torch.relu(torch.relu(x @ w + 1)) * torch.sigmoid(x) - (-w)
        return x

    return program


def shared(number):
    """Many products of one matrix."""

    def program(x, w):
        return torch.cat([x @ (w * n) for n in range(number)])

    return program


def spread(number):
    """Pairs of products whose halves lie at either end of the graph."""

    def program(x, w):
        lefts = [x * n for n in range(number)]
        first = [left @ w for left in lefts]
        y = w.sin()
        return torch.cat([*first, *(left @ y for left in lefts)])

    return program


def together(x, a, b):
    return aten.mm.default(x, a), aten.mm.default(x, b)


def one_product(x, a, b):
    both = x @ torch.cat([a, b], 1)
    return both[:, : a.shape[1]].contiguous(), both[:, a.shape[1] :].contiguous()


def joined(xs: Tensors, ys: Tensors):
    return aten.cat.default([aten.cat.default(xs), *ys])


def product_of_sums(a, b, c, d):
    return ((a + b) * (c + d)) * ((a + c) * (b + d))


TABLES = {
    "shipped": (*EXACT_RULES, *NUMERIC_RULES),
    "several results": (RewriteRule("together", together, one_product),),
    "several results, declined": (
        RewriteRule("together", together, one_product, lambda match: False),
    ),
    "lists": (RewriteRule("joined", joined, lambda xs, ys: torch.cat([*xs, *ys])),),
    "either order": (
        RewriteRule("sums", product_of_sums, lambda a, b, c, d: a, lambda match: False),
    ),
}


def cost(program, number, table):
    """The calls of functions, of Python and of C, that matching over the program's graph takes."""
    graph = to_aten(trace(program(number)), [x, w])
    return calls_of(lambda: run_passes(graph, (table,)))[0]


@pytest.mark.parametrize(
    ("name", "program", "sizes"),
    [
        ("shipped", layers, (40, 60, 120, 160)),
        ("either order", layers, (40, 60, 120, 160)),
        ("lists", shared, (40, 60, 120, 160)),
        ("several results", spread, (40, 60, 120, 160)),
        ("several results", shared, (40, 60, 120, 160)),
        ("several results, declined", shared, (40, 60, 120, 160)),
    ],
)
def test_work_grows_linearly_with_the_graph(name, program, sizes, monkeypatch):
    """Where there are more users than are looked at, and the ends are too far from each other."""
    monkeypatch.setattr(matching, "_NEAR", 16)
    monkeypatch.setattr(ordering, "_FARTHEST", 40)
    table = rule_pass("table", TABLES[name])
    cost(program, sizes[0], table)  # what a first graph in a process looks up
    found = [cost(program, size, table) for size in sizes]
    few = (found[1] - found[0]) / (sizes[1] - sizes[0])
    many = (found[3] - found[2]) / (sizes[3] - sizes[2])
    assert many <= 1.15 * few + 10, found


def test_rules_of_other_operators_cost_nothing():
    """Rules are found by the operator of their first result."""
    sines = [
        RewriteRule(f"sine-{n}", lambda x: torch.sin(torch.cos(x)), lambda x: x) for n in range(300)
    ]
    few, many = rule_pass("few", EXACT_RULES), rule_pass("many", (*sines, *EXACT_RULES))
    for table in (few, many):
        cost(layers, 5, table)
    assert cost(layers, 50, many) == cost(layers, 50, few)


def test_all_passes_grow_linearly():
    def passes(number):
        graph = to_aten(trace(layers(number)), [x, w])
        return calls_of(lambda: run_passes(graph, NUMERIC_PASSES))[0]

    passes(10)
    found = [passes(number) for number in (20, 40, 80, 160)]
    few, many = (found[1] - found[0]) / 20, (found[3] - found[2]) / 80
    assert many <= 1.1 * few + 10, found
