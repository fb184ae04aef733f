"""Symbolic sizes with the bounds that their environment knows of."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from plait_ir_lowering import lower, parse_size, print_size, verify
from plait_ir_lowering.ir.index import Sym, bounds
from plait_ir_lowering.ir.index_queries import atoms
from plait_ir_lowering.ir.open_sizes import has_learned, index_of_size, settle
from plait_utils.fake import FakeMode
from plait_utils.shape_environment import Place, make_environment


def new_environment():
    return make_environment(lambda guard: None)


def size(environment, hint: int, name: str = "n") -> torch.SymInt:
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    symbol = environment.create_symbol(
        hint, Place(name), dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, positive=True
    )
    return environment.create_symintnode(symbol, hint=hint, source=Place(name))


def span(expr) -> tuple[int, int | None]:
    (symbol,) = atoms(expr)
    assert isinstance(symbol, Sym)
    return symbol.lower, symbol.upper


def test_a_size_is_as_large_as_the_environment_has_noted():
    environment = new_environment()
    n = size(environment, 7)
    assert bool(n > 4)
    assert bool(n <= 9)
    assert bounds(index_of_size(n - 5)) == (0, 4)
    assert span(index_of_size(n)) == (5, 9)
    assert span(index_of_size(size(new_environment(), 7))) == (2, None)


@pytest.mark.parametrize(
    ("asked", "step"),
    [
        (lambda n: n % 8 == 0, 8),
        (lambda n: 2 * n % 16 == 0, 8),
        (lambda n: n % 8 == 0 and n % 12 == 0, 24),
        (lambda n: n % 7 == 6, 1),
        (lambda n: (n + 1) % 7 == 0, 1),
    ],
)
def test_a_size_is_a_multiple_of_what_the_environment_has_noted(asked, step):
    environment = new_environment()
    n = size(environment, 48)
    assert bool(asked(n))
    (symbol,) = atoms(index_of_size(n))
    assert symbol.step == step


def test_what_is_noted_later_makes_no_other_symbol_before_it_is_settled():
    environment = new_environment()
    n, m = size(environment, 7), size(environment, 7, "m")
    before = index_of_size(n), index_of_size(m)
    assert not has_learned(environment)
    assert bool(n > 4)
    assert bool(n == m)
    assert (index_of_size(n), index_of_size(m)) == before
    assert has_learned(environment)
    settle(environment)
    assert index_of_size(n) is index_of_size(m)
    assert span(index_of_size(n)) == (5, None)


def test_sizes_that_are_found_to_be_equal_are_one_in_the_whole_graph():
    """Of a matrix with as many rows as columns, of which the second node is the first to ask."""
    environment = new_environment()
    rows, columns = size(environment, 6, "rows"), size(environment, 6, "columns")
    with FakeMode(environment) as mode:
        x = mode.with_sizes(torch.empty(6, 6), (rows, columns), (columns, 1))
        graph = fx.Graph()
        given = graph.placeholder("x")
        given.meta["val"] = x
        first = graph.call_function(torch.ops.aten.sin.default, (given,))
        first.meta["val"] = x.sin()
        second = graph.call_function(torch.ops.aten.add.Tensor, (first, given))
        second.meta["val"] = x.t() + x
        graph.output((second,))
    assert environment.guards
    loops = lower(graph)
    verify(loops)
    (layout,) = {buffer.layout.size for buffer in loops.inputs}
    assert layout[0] is layout[1]


@pytest.mark.parametrize(
    "text", ["s0", "s0 >= 2", "s0 in 2..10", "s0 in 0..1", "s0 step 8", "s0 >= 2 step 4"]
)
def test_sizes_print_as_they_are_read(text):
    assert print_size(parse_size(text)) == text
