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
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from plait.arguments import CompileRequest
from plait.installed import Installed
from plait.options import CompileOptions
from plait.passes import NO_PASSES
from plait_utils import stable_hash
from plait_utils.started import changed_since_start

_FORMAT = "4"
_PACKAGES = (
    *("plait", "plait_utils", "plait_bytecode_tracer", "plait_fx_passes"),
    *("plait_ir_lowering", "plait_scheduler", "plait_cpp_codegen", "plait_triton_codegen"),
)
_VARIABLES = (
    *("ATEN", "BLIS", "CUDA", "CXX", "DNNL", "HF_", "KMP", "LD_", "MKL", "NVIDIA", "OMP"),
    *("ONEDNN", "OPENBLAS", "PLAIT", "PYTORCH", "TORCH", "TRANSFORMERS", "TRITON"),
)
"""How environment variables begin that torch, its libraries and plait read."""
_WITHOUT_EFFECT = frozenset(
    {
        *("PLAIT_CACHE_DIR", "PLAIT_DUMP_DIR", "PLAIT_LOG", "PLAIT_TRITON_WORKERS"),
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    }
)
"""Those that say where files are, and how many processes compile; torch sets that of its own
compiler, where something imports that."""


def circumstances(request: CompileRequest, function: types.FunctionType) -> dict[str, str]:
    """What a stored entry depends on, by name, in words or as hashes.

    Raises CompilerNotFoundError where there is no compiler, whose programs would be loaded.
    """
    from plait_bytecode_tracer.stored import code_hash

    return {
        **names_of(function),
        "code": code_hash(function.__code__),
        "options": "\n".join(_options(request)),
        "gradient buckets": str(active_bucket_bytes()),
        **facts_of_process(request.options),
    }


def names_of(function: types.FunctionType) -> dict[str, str]:
    """Those of them that say which function it is, whatever it does."""
    return {
        "function": f"{function.__module__}.{function.__qualname__}",
        "file": function.__code__.co_filename,
    }


def facts_of_process(options: CompileOptions) -> dict[str, str]:
    """What all functions depend on that this process compiles.

    A fact has parts, one in a line: see `plait.differences`. Raises CompilerNotFoundError.
    """
    import torch

    from plait_cpp_codegen import find_toolchain, instruction_set

    toolchain = find_toolchain(options.cpp_options())
    compiler = (
        *(f"command={toolchain.path}", f"version={toolchain.version!r}"),
        *(*toolchain.flags, *instruction_set().split(), f"key={toolchain.key}"),
    )
    machine = (
        *(f"architecture={platform.machine()}", f"processors={os.cpu_count()}"),
        f"GPUs={_devices()}",
    )
    within, between = torch.get_num_threads(), torch.get_num_interop_threads()
    return {
        "format": _FORMAT,
        "Python": f"version={sys.version}\nflags={sys.flags!r}\norder={sys.byteorder}",
        "torch": f"version={torch.__version__}\nbuild={torch.version.git_version}\n"
        f"files={_files_of_torch()}",
        "numpy": str(getattr(sys.modules.get("numpy"), "__version__", "")),
        "plait": _fingerprint(),
        "compiler and processor": "\n".join(compiler),
        "machine": "\n".join(machine),
        "threads": f"within operators={within}\nbetween operators={between}",
        "settings of torch": _settings(),
        "environment": "\n".join(_environment()),
    }


_OF_STAGES = ("cpp", "scheduler", "triton")
"""The options that hold those of a stage."""


def _options(request: CompileRequest) -> list[str]:
    """One line for each: those of a stage by their own names."""
    options = request.options
    found = {name: getattr(request, name) for name in ("fullgraph", "dynamic", "mode", "backend")}
    for each in dataclasses.fields(options):
        if each.name not in _OF_STAGES:
            found[each.name] = getattr(options, each.name)
    cpp = options.cpp_options()
    found |= {f"cpp.{each.name}": getattr(cpp, each.name) for each in dataclasses.fields(cpp)}
    for stage in ("scheduler", "triton"):
        found |= {f"{stage}.{name}": value for name, value in getattr(options, stage)}
    return [f"{name}={value!r}" for name, value in found.items()]


def _environment() -> list[str]:
    return [
        f"{name}={stable_hash(value)[:16]}"  # some are secrets
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES) and name not in _WITHOUT_EFFECT
    ]


def _settings() -> str:
    """What may be set in a process, and is asked for while compiling."""
    import torch

    deterministic = (
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]  # of a class
    )
    found: dict[str, object] = {
        "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled(),
        "deterministic algorithms warn": deterministic[0],
        "fill_uninitialized_memory": deterministic[1],
        "get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "backends.mkldnn.deterministic": torch.backends.mkldnn.deterministic,
        "backends.mkldnn.allow_tf32": torch.backends.mkldnn.allow_tf32,
        "backends.quantized.engine": torch.backends.quantized.engine,
        "backends.opt_einsum.enabled": torch.backends.opt_einsum.enabled,
        "backends.opt_einsum.strategy": torch.backends.opt_einsum.strategy,
        "is_anomaly_enabled": torch.is_anomaly_enabled(),
        "cpu_capability": torch._C._get_cpu_capability(),
    }
    return "\n".join(f"{name}={value}" for name, value in found.items())


def active_bucket_bytes() -> int | None:
    """How large the buckets are of the `DistributedDataParallel` that runs now; None outside."""
    wrapper = getattr(sys.modules.get(_WRAPPERS), "DistributedDataParallel", None)
    limit = getattr(getattr(wrapper, "_active_ddp_module", None), "bucket_bytes_cap", None)
    return limit if isinstance(limit, int) else None


_WRAPPERS = "torch.nn.parallel.distributed"


def _devices() -> int:
    import torch

    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    return 0 if count is None else int(count())


@functools.lru_cache(maxsize=1)
def _fingerprint() -> str:
    """A hash of plait's own files, as this process has met them first."""
    return _own_files()[0]


def own_files_changed() -> bool:
    """Whether plait's own files may be others than this process has loaded: who edits plait must
    not find programs of what it was before."""
    fingerprint, changed = _own_files()
    return fingerprint != _fingerprint() or changed


def _own_files() -> tuple[str, bool]:
    """A hash of plait's own files, and whether one changed since this process was started."""
    roots: dict[str, Installed] = {}
    parts: list[str] = []
    changed = False
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            root = os.path.dirname(folder)
            if root not in roots:
                roots[root] = Installed(root)
            files = roots[root].files_of(package)
            for item in _files_in(folder):
                status = item.stat()
                parts.append(files.fact(item.path, status))
                changed = changed or changed_since_start(status)
    return stable_hash(*sorted(parts)), changed


def _files_in(folder: str) -> Iterator[os.DirEntry[str]]:
    for item in os.scandir(folder):
        if not item.is_dir():
            yield item
        elif item.name != "__pycache__":
            yield from _files_in(item.path)


_PARTS_OF_TORCH = (
    *("_C", "lib", "_decomp", "_refs", "_prims", "_prims_common", "_meta_registrations.py"),
    *("_tensor.py", "functional.py", "nn/functional.py"),
)
"""Files and folders of torch's that shape programs, although no code is inlined from them."""


@functools.lru_cache(maxsize=1)
def _files_of_torch() -> str:
    """A hash of files of torch's: one may be built anew as it is."""
    import torch

    folder = Path(torch.__file__).parent
    names = "|".join(rf"{re.escape(name)}(?:/[^/,\n]+)?" for name in _PARTS_OF_TORCH)
    files = Installed(str(folder.parent)).files_of("torch", names)
    parts: list[str] = []
    for name in _PARTS_OF_TORCH:
        place = folder / name
        if place.is_dir():
            found = [i for i in os.scandir(place) if i.is_file()]
            parts += [files.fact(i.path, i.stat()) for i in found]
        elif place.exists():
            parts.append(files.fact(str(place), place.stat()))
    return stable_hash(*sorted(parts))


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
