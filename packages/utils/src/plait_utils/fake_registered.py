"""Fake results of operators that are not torch's own, by the function registered for them.

`FakeTensorMode` asks a setting of `torch._dynamo` before, which imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._library import fake_impl, simple_registry
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def registered_fake(
    mode: FakeTensorMode, func: OpOverload, flat: Sequence[object]
) -> Callable[..., Any] | None:
    """What computes an operator's fake result, where nothing else may: the arguments are fakes
    of this mode without known values, and the operator is no composition of others."""
    if func.namespace in ("aten", "prims") or not _is_opaque(func):
        return None
    for each in flat:
        if isinstance(each, torch.Tensor) and not (
            isinstance(each, FakeTensor) and each.fake_mode is mode and each.constant is None
        ):
            return None
    name: str = func.name()  # type: ignore[no-untyped-call]  # torch's
    kernel = simple_registry.singleton.find(name).fake_impl.kernel
    if kernel is None or mode.propagate_real_tensors:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        context = fake_impl.FakeImplCtx(mode, func)  # type: ignore[no-untyped-call]  # torch's
        with fake_impl.set_ctx_getter(lambda: context), mode:
            return kernel(*args, **kwargs)

    return run


@cache
def _is_opaque(func: OpOverload) -> bool:
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return func not in decomposition_table and not func.has_kernel_for_dispatch_key(composite)
