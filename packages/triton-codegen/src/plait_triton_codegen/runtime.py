"""What generated launchers call on the host."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from plait_triton_codegen.errors import TritonDeviceError


def on_device(tensor: Tensor) -> AbstractContextManager[None]:
    """Makes the tensor's device current for a launch.

    Raises TritonDeviceError for CPU tensors unless Triton's interpreter runs the kernels.
    """
    if tensor.is_cuda:
        device = tensor.get_device()
        return _NOTHING if torch.cuda.current_device() == device else _OnCuda(device)
    if tensor.device.type == "cpu":
        _require_interpreter()
    return _NOTHING


class _OnCuda(torch.cuda.device):
    """`torch.cuda.device` with types."""

    def __enter__(self) -> None:
        super().__enter__()  # type: ignore[no-untyped-call]  # torch has no types for it


_NOTHING = contextlib.nullcontext()


def on_one_device(*arguments: Tensor | int) -> tuple[Tensor | int, ...]:
    """Kernel arguments with those on the CPU moved to the device of the others: numbers in tensors,
    and indices, which eager takes from there too."""
    on_gpu = (a.device for a in arguments if isinstance(a, Tensor) and a.is_cuda)
    device = next(on_gpu, None)
    if device is None:
        return arguments
    return tuple(a.to(device) if isinstance(a, Tensor) else a for a in arguments)


_ALIGNMENT = 16
"""Bytes at whose multiples begins what a descriptor tells of."""


def begin_aligned(tensor: Tensor) -> Tensor:
    """A tensor, or a copy, that begins at a multiple of 16 bytes."""
    if tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in pairs)
    memory = tensor.as_strided((extent,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride(), 0)


def in_scratch(launch: Callable[[], object]) -> None:
    """Launch a kernel that needs memory of its own, as torch's allocator gives it.

    Triton's allocator is the caller's again afterwards.
    """
    contextvars.copy_context().run(_with_torchs_memory, launch)


def _with_torchs_memory(launch: Callable[[], object]) -> None:
    import triton

    triton.set_allocator(_scratch)
    launch()


def _scratch(size: int, _alignment: int, _stream: int | None) -> Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _require_interpreter() -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        raise TritonDeviceError(
            "Triton kernels cannot run on CPU tensors",
            hint="move the inputs to a GPU, or set TRITON_INTERPRET=1 before triton is "
            "imported to run the kernels in Triton's interpreter",
        )


class IndexErrors:
    """Where a kernel reports indices out of bounds: three i64 for each place that checks.

    A kernel only ever writes to the report when an index is wrong, so one report for each
    device serves all launches.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._reports: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The report for kernels on `device`, to pass to a launch."""
        report = self._reports.get(device)
        if report is None:
            report = torch.zeros(3 * self._places, dtype=torch.int64, device=device)
            report = self._reports.setdefault(device, report)
        return report

    def check(self, device: torch.device) -> None:
        """Wait for the kernel. Raises IndexError if it met an index out of bounds."""
        report = self.on(device)
        rows = report.view(self._places, 3).tolist()
        for wrong, index, size in rows:
            if wrong:
                report.zero_()
                raise IndexError(f"index {index} is out of bounds for dimension with size {size}")
