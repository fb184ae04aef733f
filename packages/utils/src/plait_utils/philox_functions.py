"""Whether kernels compute what a GPU's operators make of random words by its own functions.

Normal, log-normal and exponential numbers need logarithms, sines and exponentials of the GPU, which
torch has no operators for: so eager's are compared with those of the kernels that are to replace
them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plait_utils.philox import UNIFORM, UNROLL, advance, threads_of
from plait_utils.philox_agreement import (
    DOUBLES,
    FEW,
    FLOATS,
    OFFSET,
    SEED,
    Compute,
    Kind,
    drawn,
)
from plait_utils.philox_numbers import EXP, FMA, NORMAL, exponential

MEAN, DEVIATION, RATE = 0.3, 0.7, 1.7
"""Of what is compared."""
_MANY = 17
"""How many numbers each of a GPU's threads draws for a comparison."""


def _normals(state: Tensor, count: int, threads: int, dtype: torch.dtype) -> Tensor:
    numbers: Tensor = FMA(NORMAL(state, [count], 0, threads, dtype), DEVIATION, MEAN)
    return numbers


def _log_normals(state: Tensor, count: int, threads: int, dtype: torch.dtype) -> Tensor:
    numbers: Tensor = EXP(_normals(state, count, threads, dtype))
    return numbers


def _exponentials(state: Tensor, count: int, threads: int, dtype: torch.dtype) -> Tensor:
    return exponential(UNIFORM(state, [count], 0, threads, 1, dtype), RATE, dtype)


_Formula = Callable[[Tensor, int, int, torch.dtype], Tensor]
_Fill = Callable[[Tensor, torch.Generator], Tensor]
_CASES: dict[Kind, tuple[_Formula, _Fill]] = {
    Kind.NORMAL: (_normals, lambda x, g: x.normal_(MEAN, DEVIATION, generator=g)),
    Kind.LOG_NORMAL: (_log_normals, lambda x, g: x.log_normal_(MEAN, DEVIATION, generator=g)),
    Kind.EXPONENTIAL: (_exponentials, lambda x, g: x.exponential_(RATE, generator=g)),
}


def differing_by_functions(kind: Kind, device: torch.device, compute: Compute) -> str | None:
    """Where what operators of a kind draw is first found to differ from what `compute` gives, in
    words; None: nowhere.

    Raises RuntimeError where they could not be compared.
    """
    singles = {double: single for single, double in DOUBLES.items()}
    formula, fill = _CASES[singles.get(kind, kind)]
    dtypes = [dtype for dtype in FLOATS if (dtype is torch.float64) == (kind in singles)]
    wide = torch.float64 if kind in singles else torch.float32
    threads = threads_of(device)
    state = torch.tensor([SEED, OFFSET], device=device)
    for count in (FEW, _MANY * threads + _MANY):

        def function(state: Tensor, count: int = count) -> tuple[Tensor, ...]:
            numbers = formula(state, count, threads, wide)
            return tuple(numbers.to(dtype) for dtype in dtypes)

        step = advance(count, threads, UNROLL[wide])
        for found in compute(function, state):
            difference = _difference(found, fill, step)
            if difference is not None:
                return f"{count} {kind.value} as {found.dtype}: {difference}"
    return None


def _difference(found: Tensor, fill: _Fill, step: int) -> str | None:
    with torch._C.DisableTorchFunction():
        given, moved = drawn(
            lambda generator: fill(torch.empty_like(found), generator), found.device
        )
        if moved != step:
            return f"the generator is moved on by {moved}, not {step}"
        wrong = (_bits(given) != _bits(found)).nonzero().flatten()
        if not len(wrong):
            return None
        at = int(wrong[0])
        return f"{given[at].item()!r}, not {found[at].item()!r} at {at}; {len(wrong)} differ"


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(numbers: Tensor) -> Tensor:
    return numbers.view(_BITS[numbers.itemsize])
