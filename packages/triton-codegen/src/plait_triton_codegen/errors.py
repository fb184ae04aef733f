"""What can go wrong between a program and its Triton kernels."""

from __future__ import annotations

from plait_utils import PlaitError


class TritonCodegenError(PlaitError):
    """A program or kernel cannot be built or compiled with Triton."""


class UnsupportedKernelError(TritonCodegenError):
    """A kernel that Triton cannot express; the host program runs it with torch instead."""


class TritonDeviceError(TritonCodegenError):
    """Tensors are where the kernels cannot run."""
