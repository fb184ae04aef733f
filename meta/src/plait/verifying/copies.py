"""Copies of a call's inputs that relate to each other as the inputs do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_utils import dataclass


class UncopyableError(Exception):
    """Inputs of which no equal copies can be made."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Arguments to call with, and the leaves that gradients can be asked for, by position."""

    arguments: list[Any]
    leaves: dict[int, torch.Tensor]


def copy_inputs(inputs: Sequence[Any], *, wide: bool = False) -> Copies:
    """Copies of all tensors; those that share memory share that of their copies.

    Args:
        inputs: of a graph.
        wide: float tensors in float64.

    Raises:
        UncopyableError: a tensor has no plain memory of its own to copy, or inputs with histories
            share memory.
    """
    storages: dict[int, Any] = {}
    counts: dict[int, int] = {}
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    for tensor in tensors:
        _refuse(tensor)
        key = tensor.untyped_storage()._cdata
        counts[key] = counts.get(key, 0) + 1
    found = Copies([], {})
    same: dict[int, Any] = {}
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            found.arguments.append(value)
            continue
        if id(value) in same:
            found.arguments.append(same[id(value)])
            continue
        key = value.untyped_storage()._cdata
        made = _copy(value, storages, key, wide=wide)
        if value.requires_grad:
            found.leaves[index] = made.requires_grad_()
            if not value.is_leaf:
                if counts[key] > 1:
                    raise UncopyableError("inputs with histories share memory")
                made = _with_history(made)
        same[id(value)] = made
        found.arguments.append(made)
    return found


def _refuse(tensor: torch.Tensor) -> None:
    kinds = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if type(tensor) not in kinds or tensor.layout is not torch.strided:
        raise UncopyableError(f"a {type(tensor).__name__} of layout {tensor.layout} is passed")
    if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        raise UncopyableError("a lazily negated, conjugated or quantized tensor is passed")


def _copy(tensor: torch.Tensor, storages: dict[int, Any], key: int, *, wide: bool) -> torch.Tensor:
    with torch.no_grad():
        if key not in storages:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            whole = whole.set_(tensor.untyped_storage()).clone()
            storages[key] = _widened(whole) if wide else whole
        base = storages[key]
        dtype = _widened(tensor[:0] if tensor.dim() else tensor).dtype if wide else tensor.dtype
        if base.dtype != dtype:
            raise UncopyableError("inputs of several dtypes share memory")
        made: torch.Tensor = base.as_strided(
            tensor.shape, tensor.stride(), tensor.storage_offset()
        ).detach()
    return made


def _with_history(leaf: torch.Tensor) -> torch.Tensor:
    """A tensor that autograd has made, which the program may write to, of the same strides."""
    made = leaf.clone()
    if made.stride() == leaf.stride():
        return made
    if any(step == 0 and size > 1 for size, step in zip(leaf.shape, leaf.stride(), strict=True)):
        return leaf.view_as(leaf)  # nobody writes to elements that share memory
    like = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    return like.copy_(leaf)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point:
        return tensor.to(torch.float64)
    return tensor.to(torch.complex128) if tensor.dtype.is_complex else tensor
