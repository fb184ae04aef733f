"""Symbolic sizes with the least values that their environment knows of."""

from __future__ import annotations

import torch

from plait_ir_lowering.ir.index import Sym, bounds
from plait_ir_lowering.ir.index_queries import atoms
from plait_ir_lowering.ir.open_sizes import index_of_size
from plait_utils.shape_environment import Place, make_environment


def size(environment, hint: int) -> torch.SymInt:
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    symbol = environment.create_symbol(
        hint, Place("n"), dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, positive=True
    )
    return environment.create_symintnode(symbol, hint=hint, source=Place("n"))


def least(expr) -> int:
    (symbol,) = atoms(expr)
    assert isinstance(symbol, Sym)
    return symbol.lower


def test_a_size_is_as_large_as_the_environment_has_noted():
    environment = make_environment(lambda guard: None)
    n = size(environment, 7)
    assert bool(n > 4)
    expr = index_of_size(n - 5)
    assert bounds(expr) == (0, None)
    assert least(expr) == 5
    assert least(index_of_size(size(make_environment(lambda guard: None), 7))) == 2


def test_what_is_noted_later_makes_no_other_symbol():
    environment = make_environment(lambda guard: None)
    n = size(environment, 7)
    before = index_of_size(n)
    assert bool(n > 4)
    assert index_of_size(n) is before
    assert least(index_of_size(n * 2)) == 2
