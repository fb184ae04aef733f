"""Programs of a GPU that are in the cache already: a library, machine code, and what it is for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from plait_triton_codegen.errors import TritonDeviceError
from plait_triton_codegen.machine_code import device_code
from plait_triton_codegen.versions import triton_version
from plait_utils import DiskCache, stable_hash

if TYPE_CHECKING:
    from plait_cpp_codegen import Toolchain

DEVICE_PROGRAM = "gpu-"
"""How the keys of programs of a GPU begin."""


def target_of(device: int) -> str:
    """What kernels are compiled for, such as "cuda:90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda:{major}{minor}"


def store_program(device: int, library: str, kernels: Sequence[str], cache: DiskCache) -> str:
    """Note that a library and the machine code of these kernels, in their order, run a program; the
    key of that.

    Args:
        device: the GPU that the program is on.
        library: the key of its host, as `DeviceHost.library`.
        kernels: the keys of machine code.
        cache: where all of that is.
    """
    facts = {"device": device, "library": library, "kernels": [*kernels], "for": _facts(device)}
    data = json.dumps(facts, sort_keys=True).encode()
    key = f"{DEVICE_PROGRAM}{stable_hash('gpu program', data)}"
    cache.put(key, data)
    return key


def load_stored(
    program: str, toolchain: Toolchain, cache: DiskCache
) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    """What runs a program, by `TritonExecutable.library`; None where the cache lacks a part of it.

    It behaves, and raises, as `plait_cpp_codegen.load_stored` does. TritonDeviceError is raised
    where this process has another GPU, driver or Triton than the program was made for, and says so.
    """
    from plait_cpp_codegen import load_stored as load_host

    data = cache.get(program)
    if data is None:
        return None
    found = json.loads(data)
    device = found["device"]
    if device >= torch.cuda.device_count():
        raise TritonDeviceError(f"its GPU {device} is not here")
    _require_same(found["for"], _facts(device))
    codes = [cache.get(key) for key in found["kernels"]]
    kernels = [device_code(code) for code in codes if code is not None]
    if len(kernels) < len(codes):
        return None
    return load_host(found["library"], toolchain, cache, kernels)


def _require_same(stored: dict[str, str], here: dict[str, str]) -> None:
    different = [
        f"{name} is {value} and was {stored.get(name)}"
        for name, value in here.items()
        if stored.get(name) != value
    ]
    if different:
        raise TritonDeviceError(f"it was made for another machine: {'; '.join(different)}")


def _driver_version() -> object:
    find = getattr(torch._C, "_cuda_getDriverVersion", None)  # not in builds for CPUs
    return None if find is None else find()


def _facts(device: int) -> dict[str, str]:
    """What code for a GPU depends on."""
    found = torch.cuda.get_device_properties(device)
    return {
        "the GPU": str(found.name),
        "its capability": f"{found.major}.{found.minor}",
        "its number of processors": str(found.multi_processor_count),
        "the driver's CUDA version": str(_driver_version()),
        "Triton": triton_version(),
    }
