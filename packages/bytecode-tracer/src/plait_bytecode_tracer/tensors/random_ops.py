"""Operators that read and set the states of random generators, in graphs that draw around it.

Their tag says that they draw, so that what keeps random operators in the order of the graph keeps
these, too, before the draws that follow and after those that come before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._library.simple_registry import singleton

from plait_utils.fake_kernels import add_fake_kernel

NAMESPACE = "plait_random"
"""Of these operators."""
STATE_SIZE = 5056
"""Bytes of the state of a generator of the CPU: a Mersenne twister, and a number kept for later."""

_TAGS = (torch.Tag.nondeterministic_seeded,)
_Library: Any = torch.library.Library  # torch leaves it untyped
_library = _Library(NAMESPACE, "DEF")
_library.define("get_state() -> Tensor", tags=_TAGS)
_library.define("set_state(Tensor state) -> Tensor", tags=_TAGS)
_library.define("manual_seed(SymInt seed, bool everywhere) -> Tensor", tags=_TAGS)


def _get_state() -> torch.Tensor:
    return torch.default_generator.get_state()


def _set_state(state: torch.Tensor) -> torch.Tensor:
    torch.default_generator.set_state(state)
    return nothing()


def _manual_seed(seed: int, everywhere: bool) -> torch.Tensor:
    (torch.random.manual_seed if everywhere else torch.default_generator.manual_seed)(seed)
    return nothing()


def _fake_get_state() -> torch.Tensor:
    return torch.empty(STATE_SIZE, dtype=torch.uint8)


def nothing(*args: object) -> torch.Tensor:
    """What nobody reads: operators without results are taken for checks."""
    return torch.zeros(1, dtype=torch.uint8)


for _name, _kernel, _fake in (
    ("get_state", _get_state, _fake_get_state),
    ("set_state", _set_state, nothing),
    ("manual_seed", _manual_seed, nothing),
):
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    # `torch.library.register_fake` looks through all modules for the caller's: 25 ms at each start.
    _entry = singleton.find(f"{NAMESPACE}::{_name}")
    _entry.fake_impl.register(_fake, __name__, _library, allow_override=False)
    add_fake_kernel(getattr(torch.ops.plait_random, _name).default, _fake)

get_state: Any = torch.ops.plait_random.get_state.default
"""`get_state() -> Tensor`: what `torch.get_rng_state()` gives."""
set_state: Any = torch.ops.plait_random.set_state.default
"""`set_state(state) -> Tensor`: what `torch.set_rng_state(state)` does; its result says nothing."""
manual_seed: Any = torch.ops.plait_random.manual_seed.default
"""`manual_seed(seed, everywhere) -> Tensor`: of all devices, or of the CPU; likewise."""

OPERATORS = frozenset({get_state, set_state, manual_seed})
for _operator in OPERATORS:
    fx.node.has_side_effect(_operator)


def is_state(tensor: torch.Tensor) -> bool:
    """Whether a tensor, real or fake, has the form of a state of a generator of the CPU."""
    plain = tensor.layout is torch.strided and tensor.is_contiguous()
    return (
        tensor.dtype is torch.uint8
        and tuple(tensor.shape) == (STATE_SIZE,)
        and tensor.device.type == "cpu"
        and plain
    )


def is_taken(state: torch.Tensor) -> bool:
    """Whether a generator takes a tensor as its state."""
    try:
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError):
        return False
    return True


# What is read before the graph, from a source that comes first; each `number` gives another tensor.


def state_of(generator: torch.Generator, number: int) -> torch.Tensor:
    """The state of a generator."""
    return generator.get_state()


def state_of_seed(seed: int, number: int) -> torch.Tensor:
    """The state of a generator of the CPU with this seed."""
    return torch.Generator().manual_seed(seed).get_state()


def fresh_seed(generator: torch.Generator, number: int) -> int:
    """A seed by chance, as `torch.seed()` takes one, of 63 bits."""
    return int(torch.Generator().seed()) >> 1
