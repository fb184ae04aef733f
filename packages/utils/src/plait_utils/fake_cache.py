"""What operators give for tensors without data, remembered by the metadata of their arguments.

Torch's own cache of the same kind spends more on its keys than this does on all. Only plain
calls are remembered: no symbolic sizes, one tensor as the result, which is new or a view of the
first tensor, or a fixed number of them, which are new. The dtypes of results can depend on the
default dtype, which is part of the key. Of calls that write to the elements of their first
argument, and return it, it is remembered that they do not fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.fx.immutable_collections import immutable_list

from plait_utils.records import dataclass

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


_results: dict[object, _Result | tuple[_Result, ...]] = {}
_writes: set[object] = set()
"""The keys of calls that write to their first argument, and return it."""


def forget_results() -> None:
    """Empty the cache."""
    _results.clear()
    _writes.clear()


class _UnfitError(Exception):
    """A call is not remembered."""


def call_key(
    mode: FakeTensorMode, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object | None:
    """What the metadata of a call's result follows from; None where that is not known."""
    if not _is_fit(func):
        return None
    given = _arguments(mode, args, kwargs)
    return None if given is None else (func, *given, torch.get_default_dtype())


def _arguments(
    mode: FakeTensorMode, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[object, object] | None:
    """What results follow from, of the arguments of a call; None where that is not known."""
    try:
        given = _part(mode, args)
        return given, tuple([(name, _part(mode, value)) for name, value in kwargs.items()])
    except _UnfitError:
        return None


def described(mode: FakeTensorMode, value: Any) -> object | None:
    """What the results of operators follow from, of an argument; None where that is not known."""
    try:
        return _part(mode, value)
    except _UnfitError:
        return None


def write_key(
    mode: FakeTensorMode, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object | None:
    """What decides whether a call fails that writes to elements; None where that is not known.

    That is the metadata of its arguments, which of them share memory, and whether gradients flow.
    """
    if not writes_elements(func):
        return None
    arguments = _arguments(mode, args, kwargs)
    if arguments is None:
        return None
    tensors = [tensor for value in (*args, *kwargs.values()) for tensor in _tensors(value)]
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    shared = tuple(map(storages.index, storages))
    gradients = torch.is_grad_enabled(), *[tensor.requires_grad for tensor in tensors]
    return func, *arguments, shared, gradients, torch.get_default_dtype()


def is_known_write(key: object) -> bool:
    """Whether a call with this key was remembered: it returns its first argument."""
    return key in _writes


def remember_write(key: object, args: Sequence[Any], result: object) -> None:
    """Remember a call that has written to its first argument, if it returns that."""
    if args and result is args[0]:
        if len(_writes) >= _MOST:
            _writes.clear()
        _writes.add(key)


@cache
def writes_elements(func: OpOverload) -> bool:
    """Whether an operator writes to arguments, whose sizes, strides and storages stay."""
    name, schema = func._schema.name.rpartition("::")[2], func._schema
    return (
        schema.is_mutable
        and func.namespace == "aten"
        and torch.Tag.inplace_view not in func.tags
        and not any(argument.is_out for argument in schema.arguments)
        and not any(word in name for word in ("resize", "set_", "detach", "requires_grad"))
    )


@cache
def _is_fit(func: OpOverload) -> bool:
    schema = func._schema
    tensors = all(str(result.type) == "Tensor" for result in schema.returns)
    plain = func.namespace in ("aten", "prims") and not schema.is_mutable
    return plain and tensors and bool(schema.returns)


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
    if kind is immutable_list:  # of a node's arguments
        return (list, *[_part(mode, item) for item in value])
    raise _UnfitError


def recall(
    mode: FakeTensorMode, key: object, args: Sequence[Any]
) -> FakeTensor | tuple[FakeTensor, ...] | None:
    """The result of a call with this key, if one was remembered."""
    known = _results.get(key)
    if known is None:
        return None
    if isinstance(known, tuple):
        return tuple([_made(mode, each, args) for each in known])
    return _made(mode, known, args)


def _made(mode: FakeTensorMode, known: _Result, args: Sequence[Any]) -> FakeTensor:
    with in_kernel_invocation_manager(mode):
        meta: torch.Tensor
        if known.is_view:
            meta = torch.empty(0, dtype=known.dtype, device="meta")
            meta.set_(args[0].untyped_storage(), known.offset, known.shape, known.stride)
        else:
            meta = torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device="meta")
    return FakeTensor(mode, meta, known.device)


def remember(key: object, args: Sequence[Any], result: object) -> None:
    """Remember what a call gave, where it can be made again from metadata."""
    tensors = [tensor for arg in args for tensor in _tensors(arg)]
    found: _Result | tuple[_Result, ...]
    try:
        if isinstance(result, tuple | list):
            parts = []
            for each in result:
                parts.append(_described(each, args, tensors, views=False))
                tensors.append(each)  # what shares memory with another result is no new tensor
            found = tuple(parts)
        else:
            found = _described(result, args, tensors, views=True)
    except _UnfitError:
        return
    if len(_results) >= _MOST:
        _results.clear()
    _results[key] = found


def _described(
    result: object, args: Sequence[Any], tensors: Sequence[torch.Tensor], *, views: bool
) -> _Result:
    """The metadata of a result; raises _UnfitError where they do not say all about it."""
    if type(result) is not FakeTensor or result.constant is not None:
        raise _UnfitError
    if result.layout is not torch.strided or result._has_symbolic_sizes_strides:
        raise _UnfitError
    if result.dtype.is_complex or result.is_neg() or any(result is arg for arg in args):
        raise _UnfitError
    storage = result.untyped_storage()
    shared = [t for t in tensors if t.untyped_storage()._cdata == storage._cdata]
    if shared and (not views or shared[0] is not args[0] or shared[0].dtype is not result.dtype):
        raise _UnfitError
    size, stride, offset = tuple(result.shape), result.stride(), int(result.storage_offset())
    if not shared:
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        wanted = (last + 1) * result.element_size() if 0 not in size else 0
        if offset != 0 or storage.nbytes() != wanted:
            raise _UnfitError
    return _Result(size, stride, offset, result.dtype, result.fake_device, bool(shared))


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [item for item in value if isinstance(item, torch.Tensor)]
    return []
