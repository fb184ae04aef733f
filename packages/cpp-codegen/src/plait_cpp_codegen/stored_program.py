"""Programs that are in the cache already, without what they were generated from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from plait_cpp_codegen.native_runtime import load_runtime
from plait_cpp_codegen.toolchain import Toolchain
from plait_utils import DiskCache, find_library_damage

if TYPE_CHECKING:
    from plait_cpp_codegen.device_host import DeviceCode


def load_stored(
    library: str,
    toolchain: Toolchain,
    cache: DiskCache,
    kernels: Sequence[DeviceCode] | None = None,
) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    """What runs a program, by `Executable.library`, or by `DeviceHost.library` with its kernels in
    their order; None where the cache has no such library.

    Where one of its external calls fails it raises RuntimeError, not the operator's own error, and
    has changed nothing; so it does for a GPU where inputs do not begin at multiples of 16 bytes.
    Raises ImportError for a library that does not load, and CompilationError where the native
    runtime is not to be had.
    """
    path = cache.get_file(library, ".so")
    if path is None:
        return None
    damage = find_library_damage(path, "plait_signature")
    if damage is not None:
        raise ImportError(damage)
    on_gpu = () if kernels is None else (tuple(map(tuple, kernels)), _no_other_memory)
    runtime = load_runtime(toolchain, cache, gpu=kernels is not None)
    return runtime.load_program(str(path), _no_python_call, *on_gpu)


def _no_python_call(index: int, *given: object) -> NoReturn:
    raise RuntimeError(f"external call {index} of a stored program failed")


def _no_other_memory(*given: object) -> NoReturn:
    raise RuntimeError("an input of a stored program begins at no multiple of 16 bytes")
