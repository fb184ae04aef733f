"""The native runtime: built once for a machine, loaded once in a process."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Protocol, cast

import torch

from plait_cpp_codegen.shared_library import load_cached
from plait_cpp_codegen.toolchain import Toolchain
from plait_utils import DiskCache, stable_hash

_NAME = "plait_native_runtime"
_PARTS = ("abi.h", "python.h", "allocator.h", "external.h", "runtime.cpp")
_lock = threading.Lock()
_loaded: dict[str, Runtime] = {}


class Runtime(Protocol):
    """What the native runtime offers."""

    def set_up(
        self,
        torch_library: str,
        exchange_table: object,
        autocast_enabled: Callable[[], bool],
        autocast_off: Callable[[], object],
        /,
    ) -> None: ...
    def load_program(
        self, path: str, python_calls: Callable[..., tuple[torch.Tensor | None, ...]], /
    ) -> Callable[..., tuple[torch.Tensor, ...]]: ...
    def set_cache_limit(self, nbytes: int, /) -> None: ...
    def trim_cache(self) -> int: ...


def source_text(name: str) -> str:
    """A C++ text that ships with this package."""
    return resources.files("plait_cpp_codegen").joinpath("native", name).read_text("utf-8")


def load_runtime(toolchain: Toolchain, cache: DiskCache) -> Runtime:
    """The native runtime, built if it is not there yet.

    Raises CompilationError, and ImportError where torch lacks what it needs.
    """
    source = "\n".join(map(source_text, _PARTS))
    key = stable_hash("runtime", source, toolchain.key)
    with _lock:
        if key not in _loaded:
            runtime, _ = load_cached(
                cache,
                key,
                lambda output: toolchain.build(source, output, "-ldl"),
                f"PyInit_{_NAME}",
                _load,
            )
            _set_up(runtime)
            _loaded[key] = runtime
        return _loaded[key]


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
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    runtime.set_up(
        str(library), table, torch._C._is_any_autocast_enabled, torch._C._DisableAutocast
    )
