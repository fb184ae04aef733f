"""Numbers that are open."""

from __future__ import annotations

from torch.fx.experimental.symbolic_shapes import DimDynamic

from plait_utils.shape_environment import Place, make_environment


def symbolic(value, environment=None):
    """A number of an environment, which may be any."""
    environment = make_environment(lambda guard: None) if environment is None else environment
    place = Place("n")
    symbol = environment.create_symbol(
        value,
        place,
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=None,
        positive=None,
        do_not_specialize_zero_one=True,
    )
    return environment.create_symintnode(symbol, hint=value, source=place)
