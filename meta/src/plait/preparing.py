"""What gets ready for kernels of GPUs while a program is traced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from plait.options import CompileOptions
from plait_utils import PlaitError
from plait_utils.background import start_in_background

_DEEPEST = 3
"""How many containers within each other are looked through."""


def on_gpu(values: Iterable[Any]) -> bool:
    """Whether tensors are on a GPU, among values, their items and the parameters of modules, as far
    as that can be seen without running code of the user's."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types for it
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return any(_is_on_gpu(value, _DEEPEST) for value in values)


def works_with_others() -> bool:
    """Whether a graph may be on several GPUs, or one of several processes runs it."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return True
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch has no types for it


def _is_on_gpu(value: Any, depth: int) -> bool:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return bool(value.is_cuda)
    if issubclass(kind, torch.nn.Module):
        return _has_parameters_on_gpu(value)
    if not depth or kind not in (list, tuple, dict):
        return False
    items = value.values() if kind is dict else value
    return any(_is_on_gpu(item, depth - 1) for item in items)


def _has_parameters_on_gpu(module: torch.nn.Module) -> bool:
    """Of a module or those in it, in their order; the first one decides."""
    waiting = [module]
    while waiting:
        found = vars(waiting.pop())
        first = next(
            (each for each in found.get("_parameters", {}).values() if each is not None), None
        )
        if first is not None:
            return bool(first.is_cuda)
        waiting += [each for each in found.get("_modules", {}).values() if each is not None][::-1]
    return False


def prepare_kernels(options: CompileOptions) -> None:
    """Start processes that load Triton's compiler, and what builds the native runtime for GPUs, in
    threads, unless they run already."""

    def prepare() -> None:
        try:
            chosen = options.triton_options()
        except PlaitError:
            return  # who compiles tells of it
        import plait_triton_codegen
        from plait_cpp_codegen import prepare as prepare_runtime

        plait_triton_codegen.prepare(chosen)
        prepare_runtime(options.cpp_options(), gpu=True)

    start_in_background(prepare, "plait-kernels-start")
