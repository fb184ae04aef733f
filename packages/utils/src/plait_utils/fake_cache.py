"""What operators give for tensors without data, remembered by the metadata of their arguments.

Torch's own cache of the same kind spends more on its keys than this does on all. Only plain
calls are remembered: no symbolic sizes, no arguments that are written to, one tensor as the
result, which is new or a view of the first tensor. The dtypes of results can depend on the
default dtype, which is part of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)

_MOST = 20_000
"""How many results are remembered before all are forgotten."""
_CONSTANTS = frozenset(
    {
        *(int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout),
        torch.memory_format,
    }
)


@dataclass(frozen=True, slots=True)
class _Result:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    is_view: bool


_results: dict[object, _Result] = {}


def forget_results() -> None:
    """Empty the cache."""
    _results.clear()


class _UnfitError(Exception):
    """A call is not remembered."""


def call_key(
    mode: FakeTensorMode, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object | None:
    """What the metadata of a call's result follows from; None where that is not known."""
    if not _is_fit(func):
        return None
    try:
        given = _part(mode, args)
        named = tuple([(name, _part(mode, value)) for name, value in kwargs.items()])
    except _UnfitError:
        return None
    return func, given, named, torch.get_default_dtype()


@cache
def _is_fit(func: OpOverload) -> bool:
    schema = func._schema
    one_tensor = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"
    return func.namespace in ("aten", "prims") and one_tensor and not schema.is_mutable


def _part(mode: FakeTensorMode, value: Any) -> object:
    kind = type(value)
    if kind is FakeTensor:
        dtype = value.dtype
        if (
            value.fake_mode is not mode
            or value.constant is not None
            or value._has_symbolic_sizes_strides
            or dtype.is_complex
            or value.layout is not torch.strided
            or value.is_neg()
        ):
            raise _UnfitError
        return (
            *(dtype, value.shape, value.stride(), value.storage_offset(), value.fake_device),
            value.is_inference(),
        )
    if kind in _CONSTANTS:
        return kind, value
    if kind is list or kind is tuple:
        return (kind, *[_part(mode, item) for item in value])
    raise _UnfitError


def recall(mode: FakeTensorMode, key: object, args: Sequence[Any]) -> FakeTensor | None:
    """The result of a call with this key, if one was remembered."""
    known = _results.get(key)
    if known is None:
        return None
    with in_kernel_invocation_manager(mode):
        meta: torch.Tensor
        if known.is_view:
            meta = _as_strided(args[0], known.shape, known.stride, known.offset)
        else:
            meta = torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device="meta")
    return FakeTensor(mode, meta, known.device)


_as_strided: Callable[..., torch.Tensor] = torch.ops.aten.as_strided.default


def remember(key: object, args: Sequence[Any], result: object) -> None:
    """Remember what a call gave, where it can be made again from metadata."""
    if type(result) is not FakeTensor or result.constant is not None:
        return
    if result.layout is not torch.strided or result._has_symbolic_sizes_strides:
        return
    if result.dtype.is_complex or result.is_neg() or any(result is arg for arg in args):
        return
    storage = result.untyped_storage()
    tensors = [tensor for arg in args for tensor in _tensors(arg)]
    shared = [t for t in tensors if t.untyped_storage()._cdata == storage._cdata]
    if shared and (shared[0] is not args[0] or shared[0].dtype is not result.dtype):
        return
    size, stride, offset = tuple(result.shape), result.stride(), int(result.storage_offset())
    if not shared:
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        wanted = (last + 1) * result.element_size() if 0 not in size else 0
        if offset != 0 or storage.nbytes() != wanted:
            return
    if len(_results) >= _MOST:
        _results.clear()
    dtype, device = result.dtype, result.fake_device
    _results[key] = _Result(size, stride, offset, dtype, device, bool(shared))


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [item for item in value if isinstance(item, torch.Tensor)]
    return []
