"""Sizes that are rounded floats, as quotients of integers."""

import math

import pytest

from plait_ir_lowering.ir.float_sizes import fraction_of
from plait_ir_lowering.ir.open_sizes import index_of_size
from plait_utils.shape_environment import Place, make_environment


@pytest.mark.parametrize("number", [0.5, 1.5, 1.7, 0.6, 1 / 3, 0.29, 0.1, 2.5, math.pi, 1e-3])
@pytest.mark.parametrize("name", ["TruncToInt", "FloorToInt", "CeilToInt"])
def test_quotients_are_what_python_rounds(number, name):
    fraction, most = fraction_of(number, name)
    up = fraction.denominator - 1 if name == "CeilToInt" else 0
    rounding = math.ceil if up else math.floor
    for size in [*range(min(2000, most)), *range(most - 100, most + 1)]:
        if size >= 0:
            exact = (size * fraction.numerator + up) // fraction.denominator
            assert exact == rounding(size * number)


def test_bounds_end_where_products_differ():
    """`0.29 * 100` is below 29, as Python computes it."""
    fraction, most = fraction_of(0.29, "FloorToInt")
    assert most < 100 or fraction.denominator > 100


def size_of(hint):
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    environment = make_environment(lambda guard: None)
    symbol = environment.create_symbol(
        hint, Place("n"), dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, positive=True
    )
    return environment.create_symintnode(symbol, hint=hint, source=Place("n"))


def test_sizes_have_index_expressions_and_the_bound_is_noted():
    import torch

    size = size_of(10)
    (name,) = map(str, size.node.expr.free_symbols)
    assert str(index_of_size(torch.sym_int(size * 1.5))) == f"(({name}*3) // 2)"
    assert str(index_of_size(math.ceil((size - 1) / 3))) == f"(({name} + 1) // 3)"
    assert size.node.shape_env.guards
