"""Fake tensors made directly, where asking an operator for them costs more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from plait_fx_passes.layouts import has_static_sizes, span
from plait_fx_passes.record.kernels import ask_kernel
from plait_fx_passes.record.numbers import is_number

_FAKE = (FakeTensor,)


_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


_EMPTY_ON_CPU = {torch.ops.aten._native_batch_norm_legit_no_training.default: (1, 2)}
"""Results that the CPU's kernel leaves without elements, and the fake kernel does not."""


@cache
def _has_fake_of_its_own(func: OpOverload) -> bool:
    """Whether torch computes the operator's fake value by a program, not a kernel."""
    return any(applies(func) for applies, _ in op_implementations_checks)


def fake_result(
    mode: FakeTensorMode, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """What the operator returns for fake arguments, below autograd or above it.

    Where torch's fake kernel says another dtype than the kernel computes, as for statistics of
    half precision, the result has the kernel's.

    Raises:
        KernelRefusal: eager's kernel raises.
    """
    if torch.Tag.pointwise in func.tags:
        args = [_stand_in(each) for each in args]
        kwargs = {name: _stand_in(each) for name, each in kwargs.items()}
    if _has_fake_of_its_own(func):
        # Those programs call composite operators, and expect autograd to take them apart; it is
        # not to follow them.
        with torch.no_grad(), torch._C._SetExcludeDispatchKeyGuard(_AUTOGRAD, False):
            result = mode.dispatch(func, _FAKE, args, kwargs)
    else:
        result = mode.dispatch(func, _FAKE, args, kwargs)
    if func in _EMPTY_ON_CPU and isinstance(result, tuple | list):
        result = _as_left_empty(mode, func, result)
    dtypes = ask_kernel(func, args, kwargs)
    if dtypes is None:
        return result
    if isinstance(result, (list, tuple)):
        return tuple(_as_computed(mode, *pair) for pair in zip(result, dtypes, strict=True))
    return _as_computed(mode, result, dtypes[0])


def _stand_in(argument: object) -> object:
    """Any number for one that each call gives, on which neither sizes nor dtypes depend."""
    return 0.5 if is_number(argument) else argument


def _as_left_empty(
    mode: FakeTensorMode, func: OpOverload, results: Sequence[FakeTensor]
) -> tuple[FakeTensor, ...]:
    if results[0].fake_device.type != "cpu":
        return tuple(results)
    made = list(results)
    with torch._C._DisableTorchDispatch():
        for place in _EMPTY_ON_CPU[func]:
            meta = torch.empty(0, dtype=results[place].dtype, device="meta")
            made[place] = FakeTensor(mode, meta, results[place].fake_device)
    return tuple(made)


def _as_computed(mode: FakeTensorMode, value: object, dtype: torch.dtype | None) -> object:
    if not isinstance(value, FakeTensor) or dtype in (None, value.dtype) or not value.numel():
        return value
    with torch._C._DisableTorchDispatch():
        meta = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
    return FakeTensor(mode, meta, value.fake_device)


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
            flat = torch.empty(_end(tensor), dtype=tensor.dtype, device="meta")
            meta = flat.as_strided(tensor.shape, tensor.stride(), offset)
    return FakeTensor(mode, meta, device)


def _end(tensor: torch.Tensor) -> int | torch.SymInt:
    """How many elements of its storage a tensor and what lies before it take."""
    start = tensor.storage_offset()
    if type(start) is int and has_static_sizes(tensor):
        return span(tensor)[1]
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return start + 1 + sum((size - 1) * stride for size, stride in steps)


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
