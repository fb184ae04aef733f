"""The limit of specialisations for each module that is gone on with after a break."""

from __future__ import annotations

import gc
import time
import types

import torch
from torch import nn
from tracer_oracle import compiled

from plait_bytecode_tracer.limits import ModuleReference

X = torch.arange(3.0)


class Scaled(nn.Module):
    """Goes on after a break with a tensor that is guarded."""

    def __init__(self, dtype: torch.dtype = torch.int32) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((3,), 2, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        time.sleep(0)  # it breaks
        return y * self.scale


def applied(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def made_at(place: int) -> Scaled:
    """A module, with the id that another had, as long as the allocator gives that out again."""
    made = [Scaled()]
    while id(made[-1]) != place and len(made) < 1000:
        made.append(Scaled())
    return made[-1]


def test_a_module_at_the_place_of_a_dead_one_has_its_own_specialisations() -> None:
    made = compiled(applied, recompile_limit=2)
    module = Scaled()
    for dtype in (torch.float32, torch.float64, torch.int64):
        module.scale = module.scale.to(dtype)
        assert torch.equal(made(module, X), module(X))
    after = next(each for each in made.family() if each.limits.full)
    assert len(after.entries) == 2
    place = id(module)
    del module
    other = made_at(place)
    assert torch.equal(made(other, X), other(X))
    assert len(after.entries) == 3


class Alike(nn.Module):
    """Equal to all of its kind, and not hashable."""

    __hash__ = None  # type: ignore[assignment]  # as Python itself says that there is none

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)


def test_references_are_to_one_module_and_no_other() -> None:
    one, two = Alike(), Alike()
    first, again, second = ModuleReference(one), ModuleReference(one), ModuleReference(two)
    assert first == again
    assert {first: 1}[again] == 1
    assert first != second
    assert first != types.SimpleNamespace()
    del one
    gc.collect()
    assert first == first
    assert first != again
    assert first in {first}
