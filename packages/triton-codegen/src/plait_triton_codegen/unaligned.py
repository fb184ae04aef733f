"""Calls of a native program that Python must make, as kernels cannot read where inputs lie."""

from __future__ import annotations

from collections.abc import Callable

from plait_utils import warn_once
from plait_utils.forks import new_lock


class UnalignedCalls:
    """Of one program, the calls whose inputs do not begin at multiples of 16 bytes, as parts of
    other tensors may not; the first one is a warning.

    Args:
        name: of the program.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = new_lock()
        self.count = 0
        """How many there were."""

    def __str__(self) -> str:
        calls = "1 call" if self.count == 1 else f"{self.count} calls"
        return (
            f"{calls} had inputs that do not begin at multiples of 16 bytes: Python launches their "
            "kernels, without CUDA graphs, and compiles them again"
        )

    def counted(self, run: Callable[..., tuple[object, ...]]) -> Callable[..., tuple[object, ...]]:
        """What makes such calls, which are told and counted."""

        def call(*inputs: object) -> tuple[object, ...]:
            with self._lock:
                self.count += 1
            message = (
                "an input of %s does not begin at a multiple of 16 bytes: Python launches the "
                "kernels of such calls, without CUDA graphs, and compiles them again. A copy of "
                "the input (clone) begins at one"
            )
            warn_once("triton", f"unaligned: {self._name}", message, self._name)
            return run(*inputs)

        return call
