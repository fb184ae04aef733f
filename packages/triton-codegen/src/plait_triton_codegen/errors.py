"""What can go wrong between a program and its Triton kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping

from plait_utils import PlaitError


class TritonCodegenError(PlaitError):
    """A program or kernel cannot be built or compiled with Triton."""


class UnsupportedKernelError(TritonCodegenError):
    """A kernel that Triton cannot express; the host program runs it with torch instead."""


class TritonDeviceError(TritonCodegenError):
    """Tensors are where the kernels cannot run."""


class TritonVersionError(TritonCodegenError):
    """A Triton that there is no code for, that cannot be imported, or that is not there."""


_UNKNOWN_GPU = "is not defined for option 'gpu-name'"


def in_a_line(said: str) -> str:
    """What of a compiler's words is the reason: the assembler's own line, or what is below the
    place in the source."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    assembler = next((line for line in lines if line.startswith("ptxas ")), None)
    if assembler is not None:
        return assembler
    is_placed = len(lines) > 1 and re.search(r"at \d+:\d+:$", lines[0]) is not None
    return f"{lines[0]} {lines[-1]}" if is_placed else (lines or [said])[0]


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

    @property
    def is_of_device(self) -> bool:
        """Whether no kernel can be compiled for the GPU."""
        return any(_UNKNOWN_GPU in reason for reason in self.refused.values())
