"""What can go wrong between a program and its Triton kernels."""

from __future__ import annotations

from collections.abc import Mapping

from plait_utils import PlaitError


class TritonCodegenError(PlaitError):
    """A program or kernel cannot be built or compiled with Triton."""


class UnsupportedKernelError(TritonCodegenError):
    """A kernel that Triton cannot express; the host program runs it with torch instead."""


class TritonDeviceError(TritonCodegenError):
    """Tensors are where the kernels cannot run."""


class KernelCompilationError(TritonCodegenError):
    """Triton's compiler does not take a kernel.

    Args:
        kernel: its name.
        reason: what Triton says.
        others: the other kernels of the program that it does not take, and what it says of these.
    """

    def __init__(self, kernel: str, reason: str, others: Mapping[str, str] | None = None) -> None:
        super().__init__(
            f"Triton cannot compile the kernel {kernel}: {reason}",
            hint="Set PLAIT_DUMP_DIR to a folder to see the kernel in its program.triton.py.",
        )
        self.kernel = kernel
        self.refused: Mapping[str, str] = {kernel: reason, **(others or {})}
        """What Triton says, by kernel."""
