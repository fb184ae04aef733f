"""Random numbers of a counter-based generator, as operators of graphs.

Such a generator is a function: of a key, which a call draws once, and of a number's position. So
loops compute its numbers where they need them, in any order, and a backward computes again those of
its forward. It is Philox-2x32 with 10 rounds (J. Salmon et al., *Parallel random numbers: as easy
as 1, 2, 3*, 2011). Its key is the low 32 bits of the one here; its counter's low half is that of
the position, the high half those of position and key, exclusive or. Backends compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MULTIPLIER = 0xD256D193
"""Of a round."""
WEYL = 0x9E3779B9
"""What the key grows by from round to round."""
ROUNDS = 10
WORD = 0xFFFFFFFF
"""The bits of a word."""

PRECISION = {torch.float32: 24, torch.float64: 53, torch.bfloat16: 8, torch.float16: 11}
"""How many bits a number of [0, 1) has, by its dtype: all that are exact there."""

_library: Any
_library = torch.library.Library("plait_counters", "DEF")  # type: ignore[no-untyped-call]  # as torch has it
_library.define("bits(Tensor key, SymInt[] size) -> Tensor")
_library.define("uniform(Tensor key, SymInt[] size, ScalarType dtype) -> Tensor")
_library.define("normal(Tensor key, SymInt[] size, ScalarType dtype) -> Tensor")


def _philox(key: Tensor, position: Tensor) -> Tensor:
    low, high = position & WORD, ((position >> 32) ^ (key >> 32)) & WORD
    for turn in range(ROUNDS):
        product = low * MULTIPLIER
        of_round = (key + turn * WEYL) & WORD
        low, high = ((product >> 32) & WORD) ^ of_round ^ high, product & WORD
    return low | high << 32


def _positions(key: Tensor, size: Sequence[int]) -> Tensor:
    return torch.arange(math.prod(size), device=key.device).view(list(size))


def _bits(key: Tensor, size: Sequence[int]) -> Tensor:
    return _philox(key, _positions(key, size))


def _uniform(key: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    count = PRECISION[dtype]
    return (_bits(key, size) & ((1 << count) - 1)).to(dtype) * 2.0**-count


def _normal(key: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    if dtype is torch.float64:
        positions = 2 * _positions(key, size)
        first, second = (_philox(key, positions + n) & ((1 << 53) - 1) for n in (0, 1))
        scale = 2.0**-53
    else:
        bits = _bits(key, size)
        first, second, scale = bits & WORD, (bits >> 32) & WORD, 2.0**-32
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    radius = (-2 * ((first + 1).to(wide) * scale).log()).sqrt()
    return (radius * (second.to(wide) * (2 * math.pi * scale)).cos()).to(dtype)


def _shape(key: Tensor, size: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


for _name, _function in (("bits", _bits), ("uniform", _uniform), ("normal", _normal)):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    _library.impl(_name, _shape, "Meta")

BITS = torch.ops.plait_counters.bits.default
"""64 random bits for each element, as int64: of a key, an int64 tensor of one element."""
UNIFORM = torch.ops.plait_counters.uniform.default
"""Numbers of [0, 1), all that have `PRECISION` bits alike."""
NORMAL = torch.ops.plait_counters.normal.default
"""Numbers of the standard normal distribution, by Box and Muller's transformation."""
OPERATORS = frozenset({BITS, UNIFORM, NORMAL})
