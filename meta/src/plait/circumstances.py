"""Under which circumstances something was compiled: what other processes must have in common.

Guards say what a trace has assumed of one process; all else that may shape code, because it cannot
change while a process runs, is told here.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import platform
import sys
import types
from pathlib import Path

from plait.options import CompileRequest
from plait.passes import NO_PASSES
from plait_utils import stable_hash

_FORMAT = "1"
_PACKAGES = (
    *("plait", "plait_utils", "plait_bytecode_tracer", "plait_fx_passes"),
    *("plait_ir_lowering", "plait_scheduler", "plait_cpp_codegen"),
)
_VARIABLES = (
    *("ATEN", "BLIS", "CUDA", "CXX", "DNNL", "HF_", "KMP", "LD_", "MKL", "NVIDIA", "OMP"),
    *("ONEDNN", "OPENBLAS", "PLAIT", "PYTORCH", "TORCH", "TRANSFORMERS", "TRITON"),
)
"""How environment variables begin that torch, its libraries and plait read."""
_WITHOUT_EFFECT = frozenset({"PLAIT_CACHE_DIR", "PLAIT_DUMP_DIR", "PLAIT_LOG"})


def circumstances(request: CompileRequest, function: types.FunctionType) -> dict[str, str]:
    """What a stored entry depends on, by name, in words or as hashes.

    Raises CompilerNotFoundError where there is no compiler, whose programs would be loaded.
    """
    import torch

    from plait_bytecode_tracer.stored import code_hash
    from plait_cpp_codegen import find_toolchain

    toolchain = find_toolchain(request.options.cpp_options())
    code = function.__code__
    return {
        "format": _FORMAT,
        "function": f"{function.__module__}.{function.__qualname__}",
        "file": code.co_filename,
        "code": code_hash(code),
        "options": stable_hash(*_options(request)),
        "Python": f"{sys.version} {sys.flags!r} {sys.byteorder}",
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "plait": _fingerprint(),
        "compiler and processor": toolchain.key,
        "machine": f"{platform.machine()} {os.cpu_count()} {_devices()}",
        "threads": f"{torch.get_num_threads()} {torch.get_num_interop_threads()}",
        "settings of torch": _settings(),
        "environment": stable_hash(*_environment()),
    }


def _options(request: CompileRequest) -> list[str]:
    options = request.options
    fields = [
        f"{each.name}={getattr(options, each.name)!r}" for each in dataclasses.fields(options)
    ]
    rest = (request.fullgraph, request.dynamic, request.mode, request.backend)
    stages = (options.cpp_options(), options.scheduler)
    return [*fields, repr(rest), repr(stages)]


def _environment() -> list[str]:
    return [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES) and name not in _WITHOUT_EFFECT
    ]


def _settings() -> str:
    """What may be set in a process, and is asked for while compiling."""
    import torch

    found = (
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        torch._C._get_cpu_capability(),
    )
    return repr(found)


def _devices() -> int:
    import torch

    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    return 0 if count is None else int(count())


@functools.lru_cache(maxsize=1)
def _fingerprint() -> str:
    """A hash of names, sizes and times of plait's own files."""
    parts: list[str] = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            _add_files(Path(folder), parts)
    return stable_hash(*sorted(parts))


def _add_files(folder: Path, parts: list[str]) -> None:
    for item in os.scandir(folder):
        if item.is_dir():
            if item.name != "__pycache__":
                _add_files(Path(item.path), parts)
            continue
        status = item.stat()
        parts.append(f"{item.path} {status.st_size} {status.st_mtime_ns}")


def can_be_stored(request: CompileRequest) -> bool:
    """Whether what a request asks for can be stored, and was asked to be."""
    options = request.options
    return (
        options.warm_start
        and request.backend == "plait"
        and not options.verify
        and not options.verify_stages
        and not options.freeze
        and options.user_passes == NO_PASSES
        and options.random == "eager"
        and not os.environ.get("PLAIT_DUMP_DIR")
    )
