"""What can go wrong between a program and its Triton kernels."""

from __future__ import annotations

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
    """

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(
            f"Triton cannot compile the kernel {kernel}: {reason}",
            hint="Set PLAIT_DUMP_DIR to a folder to see the kernel.",
        )
        self.kernel = kernel
