"""A GPU for tests that is made of the host's memory (mock_gpu.cpp), in a process of its own.

Tensors of the CPU are those of the GPU. Kernels are functions of mock_kernels.cpp.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from plait_cpp_codegen import DeviceGraphs, DeviceKernel, build_device_host, native_runtime
from plait_cpp_codegen.device_host import DeviceCode
from plait_ir_lowering import IndexExpr, as_index
from plait_scheduler import parse_program

LAZY = os.environ.get("MOCK_GPU_LAZY") == "1"
"""Whether work is done when somebody waits for it, rather than at once."""
_HERE = Path(__file__).parent
_CAPSULE = b"dlpack_exchange_api"


def _compiled(source: str, name: str, *flags: str) -> Path:
    made = Path(tempfile.mkdtemp(prefix="mock_gpu_")) / name
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-x", "c++", str(_HERE / source)]
    command += ["-x", "none", "-o", str(made)]
    subprocess.run([*command, *flags], check=True)
    return made


def _exchange_table(gpu: ctypes.CDLL) -> object:
    capsule = torch.Tensor.__dlpack_c_exchange_api__
    pointer, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    table = gpu.mock_exchange(ctypes.c_void_p(pointer(capsule, _CAPSULE)))
    return new(table, _CAPSULE, None)


def _set_up(runtime: native_runtime.Runtime) -> None:
    autocast = torch._C._is_any_autocast_enabled, torch._C._DisableAutocast
    take = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
    on_device = str(PATH), take, str(PATH), take_numbers
    runtime.set_up(str(PATH), _exchange_table(GPU), *autocast, *on_device, *native_runtime.ERRORS)


GENERATOR = [-7, 0]
"""The seed and the offset of the GPU's generator."""


def take_numbers(device: int, count: int) -> tuple[int, int]:
    """The state of the generator, which is moved on."""
    seed, offset = GENERATOR
    GENERATOR[1] += count
    return seed, offset


_TORCH = str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
DRIVER = ctypes.CDLL(str(_compiled("/dev/null", "libcuda.so.1", "-Wl,-soname,libcuda.so.1")))
"""What lies there under the driver's name, as on a machine with a GPU."""
PATH = _compiled(
    "mock_gpu.cpp",
    "mock_gpu.so",
    *(f'-DTORCH="{_TORCH}"', "-Wl,--no-as-needed", _TORCH, "-ldl"),
)
GPU = ctypes.CDLL(str(PATH))
GPU.mock_exchange.restype = GPU.mock_stream.restype = ctypes.c_void_p
GPU.mock_set_stream.argtypes = [ctypes.c_void_p]
native_runtime._set_up = _set_up
IMAGE = _compiled("mock_kernels.cpp", "kernels.so").read_bytes()


class Graphs(DeviceGraphs):
    """Graphs whose memory is that of the pool of mock_gpu.cpp."""

    _sides: ClassVar[dict[int, int]] = {}
    """The streams that recordings are made on, by those that these are launched on."""

    @contextmanager
    def memory(self, stream: int) -> Iterator[None]:  # type: ignore[override]  # a stand-in
        assert self._new_stream is not None
        before, context = GPU.mock_stream(), GPU.mock_context()
        GPU.mock_use_context(self._device)
        if stream not in self._sides:
            self._sides[stream] = self._new_stream()
        GPU.mock_set_stream(self._sides[stream])
        GPU.mock_set_pooled(True)
        yield
        GPU.mock_set_pooled(False)
        GPU.mock_set_stream(before)
        GPU.mock_use_context(context)


def built(
    text: str,
    programs: Mapping[str, Sequence[int | IndexExpr]],
    otherwise: Callable[..., Any] | None = None,
    graphs: DeviceGraphs | None = None,
    check_launches: bool = False,
    overlapping: Collection[str] = (),
) -> Callable[..., Sequence[Tensor]]:
    """What runs a program.

    Args:
        programs: of each kernel of the GPU, how many programs it has, and how many places check an
            index; how many are launched at most, and the bytes of memory that each of them asks
            for.
        overlapping: the kernels that may start before the one before is done.
    """
    program = parse_program(text)
    kernels, codes = {}, {}
    for kernel in program.kernels:
        if kernel.name not in programs:
            continue
        extent, checks, most, scratch = (*programs[kernel.name], 0, 0)[:4]
        symbols = tuple(kernel.symbols)
        blocks = ((as_index(extent), 1),)
        asks, overlaps = scratch > 0, kernel.name in overlapping
        kernels[kernel.name] = DeviceKernel(blocks, symbols, checks, most, asks, overlaps)
        codes[kernel.name] = DeviceCode(kernel.name, 32, 64 << 10, IMAGE, scratch)

    def run_otherwise(*inputs: Tensor) -> Any:
        assert otherwise is not None, "inputs are not aligned"
        return otherwise(*inputs)

    host = build_device_host(
        *(program, kernels, lambda: codes, lambda _: run_otherwise),
        graphs=graphs,
        check_launches=check_launches,
    )
    return host.run


def on_host(tensor: Tensor) -> Tensor:
    """A tensor that is the CPU's, for the rest of the process."""
    _ON_HOST.append(tensor)
    GPU.mock_put_on_host(ctypes.c_void_p(tensor.data_ptr()))
    return tensor


_ON_HOST: list[Tensor] = []
"""They stay: what lay where one did would be the CPU's, too."""


def wait() -> None:
    """Until all that was launched has run."""
    GPU.mock_wait()
    assert not GPU.mock_misused()


def alive() -> dict[str, int]:
    """How many of each there are."""
    names = "blocks", "views", "modules", "events", "graphs", "executables", "pinned"
    counts = (ctypes.c_int * len(names))()
    wait()
    GPU.mock_alive(counts)
    return dict(zip(names, counts, strict=True))


gc.collect()
gc.freeze()  # tests collect what they leave, many times


def fresh() -> Iterator[None]:
    """A fixture around each test: a GPU on which nothing is to fail."""
    gc.collect()
    GPU.mock_set_lazy(LAZY)
    GPU.mock_set_context(True)
    yield
    GPU.mock_fail(0)
    GPU.mock_fail_memory(0)
    wait()


def in_threads(work: Callable[[int], None], count: int = 8) -> None:
    """Let threads do this, each with its number. What one of them raises fails the test."""
    wrong: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, (len(wrong), wrong[0])
