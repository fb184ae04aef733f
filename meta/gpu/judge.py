"""Results of a compiled program, eager's, and those in float64, which say how far off is too far.

A tensor's error is the norm of what it differs by from float64's. Eager has one, too, so that no
bound depends on how deep a model is; it may be small by chance, so that a few roundings of the
tensor itself and one of the largest tensor beside it are allowed to all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from suites.compare import difference, tensors_in
from torch import Tensor
from torch.utils._pytree import tree_map_only

_OF_EAGERS = 3
_ROUNDINGS = 16


def fault(actual: Any, expected: Any, exact: Callable[[], Any], place: str) -> str | None:
    """What a compiled program has done otherwise than eager, in words; None where nothing.

    `exact` computes the same in float64, and is called where values differ by more than
    `torch.testing.assert_close` allows. Where it raises, that remains the judge.
    """
    wrong = difference(actual, expected, place, values=False)
    if wrong is not None:
        return wrong
    near = difference(actual, expected, place)
    if near is None:
        return None
    try:
        true = tensors_in(exact(), place)
    except Exception as error:  # no kernels for float64, or types that are mixed then
        return f"{near} (float64 does not run: {type(error).__name__})"
    ours, theirs = tensors_in(actual, place), tensors_in(expected, place)
    if list(true) != list(theirs):
        return f"{near} (float64 gives other results)"
    return _farthest(ours, theirs, true)


def _farthest(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], true: Mapping[str, Tensor]
) -> str | None:
    largest = max(_norm(each) for each in true.values())
    for place, right in true.items():
        mine, other = ours[place], theirs[place]
        if not (other.is_floating_point() or other.is_complex()):
            if not torch.equal(mine, other):
                return f"{place}: {int((mine != other).sum())} of {other.numel()} differ"
            continue
        if not _is_odd_alike(mine, other):
            return f"{place}: other elements are infinite or no numbers than in eager"
        grain = torch.finfo(other.dtype).eps
        mine_off, other_off = _norm(_wide(mine) - _wide(right)), _norm(_wide(other) - _wide(right))
        allowed = _OF_EAGERS * other_off + grain * (_ROUNDINGS * _norm(right) + largest)
        if mine_off > allowed:
            return (
                f"{place}: off by {mine_off:.2e}, eager by {other_off:.2e}, of {_norm(right):.2e}"
            )
    return None


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _norm(tensor: Tensor) -> float:
    """The norm of the numbers in a tensor; what is infinite or no number is judged apart."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return 0.0
    wide = _wide(tensor)
    return float(torch.where(wide.isfinite(), wide, torch.zeros_like(wide)).norm())


def _is_odd_alike(one: Tensor, other: Tensor) -> bool:
    odd = other.isnan() | other.isinf()
    same = torch.equal(one.isnan(), other.isnan()) and torch.equal(one.isinf(), other.isinf())
    return same and (not odd.any() or torch.equal(one[odd].nan_to_num(0), other[odd].nan_to_num(0)))


def in_float64(value: Any) -> Any:
    """A value whose tensors of floats are in float64."""
    return tree_map_only(
        Tensor, lambda each: each.double() if each.is_floating_point() else each, value
    )
