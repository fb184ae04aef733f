"""Whether two results differ by more than rounding, float64 being the judge."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_OTHERS = 1e-4
_TIMES_EAGER = 10
"""How many times eager's own error is still rounding."""


def difference(actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None) -> str | None:
    """How `actual` differs from what it should be; None where that is rounding.

    Args:
        actual: what compiled code computed.
        eager: what eager computes, in the same dtype.
        exact: the same in float64, if that can be had. An element may be as far from it as the
            worst of eager's is, ten times, and a small part of the largest besides. Integers and
            infinities are compared where eager agrees with it.
    """
    if actual.shape != eager.shape or actual.dtype != eager.dtype:
        return f"{actual.dtype} {list(actual.shape)} instead of {eager.dtype} {list(eager.shape)}"
    if actual.numel() == 0:
        return None
    if not (eager.dtype.is_floating_point or eager.dtype.is_complex):
        wrong = actual != eager
        if exact is not None and exact.shape == eager.shape:
            wrong &= exact == eager
        return f"{int(wrong.sum())} elements" if bool(wrong.any()) else None
    wide = torch.complex128 if eager.dtype.is_complex else torch.float64
    a, e = actual.detach().to(wide), eager.detach().to(wide)
    x = e if exact is None or exact.shape != eager.shape else exact.detach().to(wide)
    finite = torch.isfinite(x) & torch.isfinite(e)
    special = torch.isfinite(a) != torch.isfinite(e)
    special &= torch.isfinite(x) == torch.isfinite(e)
    special |= ~finite & torch.isfinite(x).logical_not() & (a.isnan() != e.isnan())
    if bool(special.any()):
        return f"{int(special.sum())} elements differ by infinity or NaN"
    zero = torch.zeros((), dtype=torch.float64)
    error = torch.where(finite, (a - x).abs(), zero)
    own = torch.where(finite, (e - x).abs(), zero).max()
    size = torch.where(finite, x.abs(), zero)
    relative = _RELATIVE.get(eager.dtype, _OTHERS)
    allowed = _TIMES_EAGER * own + relative * (size + 0.1 * size.max())
    if bool((error <= allowed).all()):
        return None
    worst = error.max()
    return f"up to {float(worst):.3g}, where eager is off by up to {float(own):.3g}"


def first_difference(
    names: Sequence[str],
    actual: Sequence[torch.Tensor | None],
    eager: Sequence[torch.Tensor | None],
    exact: Sequence[torch.Tensor | None] | None,
) -> tuple[str, str] | None:
    """The name of the first tensor that differs, and how."""
    judges = [None] * len(eager) if exact is None else exact
    for name, got, wanted, judge in zip(names, actual, eager, judges, strict=True):
        if got is None or wanted is None:
            if (got is None) != (wanted is None):
                return name, "one is None"
            continue
        found = difference(got, wanted, judge)
        if found is not None:
            return name, found
    return None
