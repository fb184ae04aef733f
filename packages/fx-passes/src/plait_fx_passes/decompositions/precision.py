"""Which dtypes a sequence of operators computes in as one operator does."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from plait_fx_passes.record.recorder import Rule

_SINGLE = (torch.float32, torch.float64)
_HALF = (torch.float16, torch.bfloat16)


def unrounded(rule: Rule) -> Rule:
    """Declines half precision, which the operator's own lowering computes, and integers."""

    @wraps(rule)
    def checked(x: Tensor, *args: object, **kwargs: object) -> object:
        return rule(x, *args, **kwargs) if x.dtype in _SINGLE else NotImplemented

    return checked


def rounded_once(rule: Rule) -> Rule:
    """Computes half precision in float32 and rounds the results, as eager's kernels do.

    Declines integers, and tensors of several float types.
    """

    @wraps(rule)
    def checked(x: Tensor, *args: object, **kwargs: object) -> object:
        if x.dtype in _SINGLE:
            return rule(x, *args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        mixed = any(each.is_floating_point() and each.dtype != x.dtype for each in tensors)
        if x.dtype not in _HALF or mixed:
            return NotImplemented
        narrow = x.dtype
        x, args, kwargs = tree_map(lambda each: _in_float32(each, narrow), (x, args, kwargs))
        found = rule(x, *args, **kwargs)
        return tree_map_only(Tensor, lambda each: _narrowed(each, narrow), found)

    return checked


def of_all_numbers(rule: Rule) -> Rule:
    """As `rounded_once`, and takes integers and complex numbers of one type on a CPU: kernels of
    other devices refuse some of them."""
    return _also(lambda x: x.dtype is not torch.bool, rule)


def of_complex_numbers_too(rule: Rule) -> Rule:
    """As `rounded_once`, and takes complex numbers of one type on a CPU."""
    return _also(torch.Tensor.is_complex, rule)


def _also(takes: Callable[[Tensor], bool], rule: Rule) -> Rule:
    of_floats = rounded_once(rule)

    @wraps(rule)
    def checked(x: Tensor, *args: object, **kwargs: object) -> object:
        if x.is_floating_point():
            return of_floats(x, *args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if x.device.type != "cpu" or not takes(x) or any(each.dtype != x.dtype for each in tensors):
            return NotImplemented
        return rule(x, *args, **kwargs)

    return checked


def of_integers_too(rule: Rule) -> Rule:
    """Of integers and bools as floats of the default type, which eager promotes them to."""

    @wraps(rule)
    def promoted(x: Tensor, *args: object, **kwargs: object) -> object:
        if not (x.is_floating_point() or x.is_complex()):
            x = x.to(torch.get_default_dtype())
        return rule(x, *args, **kwargs)

    return promoted


def wide(x: Tensor) -> Tensor:
    """Half precision as float32; other tensors as they are."""
    return x.float() if x.dtype in _HALF else x


def parameter_dtype(x: Tensor, *parameters: Tensor | None) -> torch.dtype | None:
    """What eager's kernels of the CPU keep the statistics of `x` in: the type of the parameters.

    None where they refuse these parameters, or their results have other types elsewhere.
    """
    given = {each.dtype for each in parameters if each is not None} or {x.dtype}
    dtype = given.pop()
    is_wider = x.dtype in _HALF and dtype is torch.float32
    if given or not x.is_floating_point() or not (is_wider or dtype is x.dtype):
        return None
    return dtype if x.dtype in _SINGLE or x.device.type == "cpu" else None


def statistics_dtype(x: Tensor, *parameters: Tensor | None) -> torch.dtype | None:
    """What eager's batch norms keep the statistics of `x` in: as `parameter_dtype`, but always
    float32 of half precision on a GPU."""
    given = {each.dtype for each in parameters if each is not None}
    if x.device.type == "cuda" and x.dtype in _HALF:
        return torch.float32 if given in ({torch.float32}, {x.dtype}, set()) else None
    return parameter_dtype(x, *parameters)


def _in_float32(value: object, narrow: torch.dtype) -> object:
    if isinstance(value, Tensor):
        return wide(value)
    return torch.float32 if value is narrow else value


def _narrowed(result: Tensor, narrow: torch.dtype) -> Tensor:
    return result.to(narrow) if result.dtype is torch.float32 else result
