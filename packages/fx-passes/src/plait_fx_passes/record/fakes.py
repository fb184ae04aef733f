"""Fake tensors made directly, where asking an operator for them costs more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from plait_fx_passes.layouts import span

_FAKE = (FakeTensor,)


_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


@cache
def _has_fake_of_its_own(func: OpOverload) -> bool:
    """Whether torch computes the operator's fake value by a program, not a kernel."""
    return any(applies(func) for applies, _ in op_implementations_checks)


def fake_result(
    mode: FakeTensorMode, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """What the operator returns for fake arguments, below autograd or above it.

    Those programs call composite operators, and expect autograd to take them apart.
    """
    if _has_fake_of_its_own(func):
        with torch._C._SetExcludeDispatchKeyGuard(_AUTOGRAD, False):
            return mode.dispatch(func, _FAKE, args, kwargs)
    return mode.dispatch(func, _FAKE, args, kwargs)


def fake_of(mode: FakeTensorMode, tensor: torch.Tensor) -> FakeTensor:
    """A new fake tensor with the geometry, dtype and device of a real or fake tensor.

    Many times faster than ``mode.from_tensor``, which also follows views, gradients and
    subclasses; falls back to it where those matter.
    """
    plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
    if not plain or tensor.is_quantized or tensor.is_nested:
        return mode.from_tensor(tensor)
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    offset = tensor.storage_offset()
    with torch._C._DisableTorchDispatch():
        if offset == 0:
            meta = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
            )
        else:
            flat = torch.empty(span(tensor)[1], dtype=tensor.dtype, device="meta")
            meta = flat.as_strided(tensor.shape, tensor.stride(), offset)
    return FakeTensor(mode, meta, device)


def permuted(mode: FakeTensorMode, base: FakeTensor, order: Sequence[int]) -> FakeTensor:
    """The permutation of a fake tensor's dimensions.

    torch's own ``permute`` of a tensor subclass imports ``torch.distributed.tensor``, a fifth of a
    second at a cold start.
    """
    shape, stride = base.shape, base.stride()
    with torch._C._DisableTorchDispatch():
        meta = torch.empty(0, dtype=base.dtype, device="meta")
        meta.set_(
            base.untyped_storage(),
            base.storage_offset(),
            [shape[axis] for axis in order],
            [stride[axis] for axis in order],
        )
    return FakeTensor(mode, meta, base.fake_device)
