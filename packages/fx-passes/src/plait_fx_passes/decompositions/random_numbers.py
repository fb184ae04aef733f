"""Random operators by a counter-based generator: each draws a key, of which loops compute the rest.

Keys come from torch's own generator of the device, so `torch.manual_seed` makes programs repeat
themselves; the numbers are others than eager's. Calls with a generator of their own are left, and
those that eager refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.record.recorder import Rule
from plait_utils.counters import BITS, NORMAL, PRECISION, UNIFORM, WORD

aten = torch.ops.aten

_LEAST, _GREATEST = -(2**63), 2**63 - 1
Draw = Callable[[Sequence[int], torch.dtype, torch.device | None], Tensor]


def _key(device: torch.device | None) -> Tensor:
    kwargs = {"dtype": torch.int64, "device": device}
    drawn: Tensor = aten.randint.low(_LEAST, _GREATEST, [1], **kwargs)
    return drawn


def _takes(dtype: torch.dtype, layout: torch.layout | None = None) -> bool:
    return dtype in PRECISION and layout in (None, torch.strided)


def _uniform(size: Sequence[int], dtype: torch.dtype, device: torch.device | None) -> Tensor:
    drawn: Tensor = UNIFORM(_key(device), size, dtype)
    return drawn


def _normal(size: Sequence[int], dtype: torch.dtype, device: torch.device | None) -> Tensor:
    drawn: Tensor = NORMAL(_key(device), size, dtype)
    return drawn


def _counts(low: int, high: int, dtype: torch.dtype) -> bool:
    """Whether a dtype has all integers of [low, high), some of them but less than 2^63."""
    if dtype in PRECISION:
        least, most = -(2 ** PRECISION[dtype]), 2 ** PRECISION[dtype]
    elif dtype is torch.bool:
        least, most = 0, 1
    elif dtype.is_complex or dtype.is_floating_point:
        return False
    else:
        limits = torch.iinfo(dtype)
        least, most = limits.min, limits.max
    return least <= low < high <= most + 1 and high - low <= _GREATEST


def _integers(
    low: int, high: int, size: Sequence[int], dtype: torch.dtype, device: torch.device | None
) -> Tensor:
    """Of [low, high): the high word of a product of 32 bits and the count, or a remainder."""
    bits: Tensor = BITS(_key(device), size)
    count = high - low
    if count < 2**31:
        drawn = (bits & WORD) * count >> 32
    else:
        drawn = (bits & _GREATEST) % count
    return (drawn + low).to(dtype)


def _created(drawn: Draw) -> Callable[..., object]:
    """Draws a tensor of a size."""

    def create(
        size: Sequence[int],
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> object:
        dtype = dtype or torch.get_default_dtype()
        return drawn(size, dtype, device) if _takes(dtype, layout) else NotImplemented

    return create


def _like(create: Callable[..., object]) -> Rule:
    """Draws a tensor like another; what comes before its size is between the two."""

    def create_like(
        x: Tensor,
        *before: int,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> object:
        dtype, device = dtype or x.dtype, device or x.device
        return create(*before, x.shape, dtype=dtype, layout=layout, device=device)

    return create_like


def uniform(x: Tensor, low: float = 0, high: float = 1, generator: object = None) -> object:
    if generator is not None or not _takes(x.dtype):
        return NotImplemented
    if not 0 <= high - low <= torch.finfo(x.dtype).max:
        return NotImplemented
    return _uniform(x.shape, x.dtype, x.device) * (high - low) + low


def normal(x: Tensor, mean: float = 0, std: float = 1, generator: object = None) -> object:
    if generator is not None or not _takes(x.dtype):
        return NotImplemented
    return _normal(x.shape, x.dtype, x.device) * std + mean


def exponential(x: Tensor, rate: float = 1, generator: object = None) -> object:
    if generator is not None or x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return (-_uniform(x.shape, x.dtype, x.device)).log1p() * (-1 / rate)


def bernoulli_of(x: Tensor, p: float = 0.5, generator: object = None) -> object:
    if generator is not None or x.is_complex() or not 0 <= p <= 1:
        return NotImplemented
    return (_uniform(x.shape, torch.float32, x.device) < p).to(x.dtype)


def bernoulli(x: Tensor, generator: object = None) -> object:
    if generator is not None or not _takes(x.dtype):
        return NotImplemented
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return (_uniform(x.shape, wide, x.device) < x).to(x.dtype)


def native_dropout(x: Tensor, p: float, train: bool | None) -> object:
    if train is False or p == 0 or not _takes(x.dtype):
        return NotImplemented
    kept = _uniform(x.shape, torch.float32, x.device) < 1 - p
    return x * kept * (1 / (1 - p) if p < 1 else 0), kept


def randint_low(
    low: int,
    high: int,
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> object:
    dtype = dtype or torch.int64
    if not _counts(low, high, dtype) or layout not in (None, torch.strided):
        return NotImplemented
    return _integers(low, high, size, dtype, device)


rand, randn = _created(_uniform), _created(_normal)
randint = partial(randint_low, 0)

TABLE: dict[OpOverload, Rule] = {
    aten.rand.default: rand,
    aten.rand_like.default: _like(rand),
    aten.randn.default: randn,
    aten.randn_like.default: _like(randn),
    aten.uniform.default: uniform,
    aten.normal_functional.default: normal,
    aten.exponential.default: exponential,
    aten.bernoulli.p: bernoulli_of,
    aten.bernoulli.default: bernoulli,
    aten.native_dropout.default: native_dropout,
    aten.randint.low: randint_low,
    aten.randint.default: randint,
    aten.randint_like.default: _like(randint),
    aten.randint_like.low_dtype: _like(randint_low),
}
