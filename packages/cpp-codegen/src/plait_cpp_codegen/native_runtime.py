"""The native runtime: built once for a machine, loaded once in a process."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Protocol, cast

import torch

from plait_cpp_codegen.options import CppOptions
from plait_cpp_codegen.shared_library import load_cached
from plait_cpp_codegen.toolchain import Toolchain, find_toolchain
from plait_utils import DiskCache, stable_hash
from plait_utils.background import start_in_background
from plait_utils.device_errors import EARLIER, DeviceFailedError, HalfWrittenError
from plait_utils.forks import new_lock

_NAME = "plait_native_runtime"
_COMMON = "abi.h", "python.h", "allocator.h", "external.h"
_PARTS = {
    False: (*_COMMON, "no_gpu.h", "run.h", "repeat.h", "runtime.cpp"),
    True: (*_COMMON, "gpu.h", "run.h", "repeat.h", "graphs.h", "replay.h", "runtime.cpp"),
}
"""Of the runtime for programs of CPUs, which nobody is to wait for, and of that for GPUs."""
_DRIVER = "libcuda.so.1"
ERRORS = torch.OutOfMemoryError, DeviceFailedError, HalfWrittenError, EARLIER
"""What the runtime raises, and says where an error may be another kernel's."""
_lock = new_lock()
_loaded: dict[str, Runtime] = {}
_preparing: dict[bool, threading.Thread | None] = {}
"""The threads that `prepare` has started, for CPUs and for GPUs; None where none could be."""


class Runtime(Protocol):
    """What the native runtime offers."""

    def set_up(
        self,
        torch_library: str,
        exchange_table: object,
        autocast_enabled: Callable[[], bool],
        autocast_off: Callable[[], object],
        cuda_library: str,
        take_tensors: Callable[..., object],
        driver: str,
        take_numbers: Callable[[int, int], tuple[int, int]],
        out_of_memory: type[Exception],
        device_failed: type[Exception],
        inputs_half_written: type[Exception],
        earlier_error: str,
        /,
    ) -> None: ...
    def load_program(
        self,
        path: str,
        python_calls: Callable[..., tuple[torch.Tensor | None, ...]],
        /,
        *on_gpu: object,
    ) -> Callable[..., tuple[torch.Tensor, ...]]:
        """What runs a compiled program: with `on_gpu`, the name, threads, shared bytes and image of
        each of its kernels, and what runs it on inputs that do not begin at 16 bytes; and, where it
        is to be recorded, its `DeviceGraphs` and a byte for each input and output that says what
        uses it."""
        ...

    def repeat(self, program: Callable[..., object], plan: bytes, /) -> int:
        """Run a program again and again, as `repeating.Repetition.plan` says; how many runs it was,
        or -1 where one failed."""
        ...

    def set_cache_limit(self, nbytes: int, /) -> None: ...
    def trim_cache(self) -> int: ...
    def new_stream(self) -> int: ...


def source_text(name: str) -> str:
    """A C++ text that ships with this package."""
    return resources.files("plait_cpp_codegen").joinpath("native", name).read_text("utf-8")


def prepare(
    options: CppOptions | None = None, cache: DiskCache | None = None, *, gpu: bool = False
) -> None:
    """Find the compiler and start building and loading the native runtime, in a thread.

    Which takes as long as a small program does, and needs nothing of one: who is about to compile
    calls this first. What goes wrong is told to who builds a program then. Once in a process.

    Args:
        gpu: for programs of GPUs, which have a runtime of their own.
    """
    if gpu in _preparing or (_loaded and not gpu):
        return
    chosen, place = options or CppOptions.from_env(), cache or DiskCache()
    _preparing[gpu] = start_in_background(
        lambda: _prepare(chosen, place, gpu=gpu), "plait-runtime-build"
    )


def is_preparing() -> bool:
    """Whether the thread that `prepare` has started is at work: a program is built meanwhile."""
    thread = _preparing.get(False)
    return thread is not None and thread.is_alive()


def _prepare(options: CppOptions, cache: DiskCache, *, gpu: bool) -> None:
    with contextlib.suppress(Exception):
        load_runtime(find_toolchain(options), cache, gpu=gpu)


def _forget_threads() -> None:
    """In a forked child, which has none of its parent's threads: no lock is held by one."""
    global _lock, _preparing
    _lock, _preparing = new_lock(), {}


os.register_at_fork(after_in_child=_forget_threads)


def load_runtime(toolchain: Toolchain, cache: DiskCache, *, gpu: bool = False) -> Runtime:
    """The native runtime, built if it is not there yet: that for programs of GPUs or of CPUs.

    Raises CompilationError, and ImportError where torch lacks what it needs.
    """
    toolchain = toolchain.of_runtime
    source = "\n".join(map(source_text, _PARTS[gpu]))
    libraries = (*toolchain.bare, "-ldl")
    key = stable_hash("runtime", source, toolchain.key, libraries)
    with _lock:
        if key not in _loaded:
            runtime, _ = load_cached(
                cache,
                key,
                lambda output: toolchain.build(source, output, *libraries),
                f"PyInit_{_NAME}",
                _load,
            )
            _set_up(runtime)
            _loaded[key] = runtime
        return _loaded[key]


def loaded_runtimes() -> tuple[Runtime, ...]:
    """Those of this process."""
    return tuple(_loaded.values())


def _load(path: Path) -> Runtime:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    if spec is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return cast(Runtime, module)


def _set_up(runtime: Runtime) -> None:
    """Connect the runtime to this process's torch. Raises ImportError."""
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        raise ImportError("this torch publishes no DLPack exchange table; 2.11 and newer do")
    folder = Path(torch.__file__).parent / "lib"
    library, on_gpu = folder / "libtorch_cpu.so", folder / "libtorch_cuda.so"
    autocast = torch._C._is_any_autocast_enabled, torch._C._DisableAutocast
    take_tensors = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
    on_devices = str(on_gpu), take_tensors, _DRIVER, _take_numbers
    runtime.set_up(*(str(library), table, *autocast, *on_devices, *ERRORS))


def _take_numbers(device: int, count: int) -> tuple[int, int]:
    """The state of a GPU's generator, which is moved on: few programs draw."""
    from plait_utils.philox import take

    return take(device, count)
