"""The breaks at operations that raise when they are run on fake tensors."""

from __future__ import annotations

from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.tensors.leaves import without_fake


def failing_operation(target: Any, error: Exception) -> TraceBreakError:
    """The break at an operation that raises."""
    name = target if isinstance(target, str) else getattr(target, "__name__", target)
    operator_name = without_fake(target, error)
    if operator_name is not None:
        how = f"@torch.library.register_fake({operator_name!r}) registers one"
        return TraceBreakError("GB0019", f"{operator_name} has no fake kernel: {how}")
    if type(error).__name__ in _NEEDS_DATA or _fails_to_tell(error):
        return TraceBreakError("GB0008", f"{name} needs a size or number that depends on data")
    reason = str(error).strip().splitlines()
    first = reason[0] if reason else type(error).__name__
    return TraceBreakError("GB0008", f"{name} fails: {first}")


_NEEDS_DATA = (
    *("DynamicOutputShapeException", "DataDependentOutputException"),
    "GuardOnDataDependentSymNode",
)
"""Errors of fake tensors where only the graph's run could go on; their texts are torch's own."""


def _fails_to_tell(error: Exception) -> bool:
    """Whether torch itself failed as it put together an error about sizes that depend on data.

    Torch 2.11 does, where it finds no frame that it would name.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_name != "_make_data_dependent_error":
        frame = frame.tb_next
    return frame is not None
