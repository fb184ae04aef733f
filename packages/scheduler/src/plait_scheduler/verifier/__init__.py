"""Whether programs and kernels are sound."""

from plait_scheduler.verifier.kernel import verify_kernel
from plait_scheduler.verifier.program import verify_program

__all__ = ["verify_kernel", "verify_program"]
