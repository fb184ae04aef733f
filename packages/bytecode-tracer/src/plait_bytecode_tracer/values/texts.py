"""Format strings with tensors in them: made only when they leave the trace.

Most are messages of checks that hold, so nobody ever sees them.
"""

from __future__ import annotations

from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.values.variables import TensorVariable, TextVariable, Variable

CONVERSIONS: dict[int, Any] = {1: str, 2: repr, 3: ascii}
"""What `!s`, `!r` and `!a` call, by the number in the bytecode."""


def tensor_text(tensor: TensorVariable, kind: int, spec: str) -> TextVariable:
    """`f"{tensor!kind:spec}"`. Breaks where that may raise, or tell of the tensor's history."""
    fake = tensor.fake
    is_number = fake.dim() == 0 and kind == 0 and tensor.cls is torch.Tensor
    if not is_number and (fake.requires_grad or spec):
        raise TraceBreakError("GB0004", "a tensor formatted as text")
    try:
        format(torch.zeros((), dtype=fake.dtype).item(), spec)
    except (ValueError, RuntimeError) as error:
        raise TraceBreakError("GB0004", "a tensor formatted as text") from error
    if spec.endswith("c"):  # whether that is a character depends on the number
        raise TraceBreakError("GB0004", "a tensor formatted as text")
    return TextVariable([(tensor, kind, spec)])


def text_of(value: Variable, function: Any) -> TextVariable:
    """`str(value)` and its like, of a tensor or a text that tells of tensors."""
    if isinstance(value, TextVariable) and function is str:
        return value
    if not isinstance(value, TensorVariable):
        raise TraceBreakError("GB0004", "tensors formatted as text")
    (kind,) = (number for number, found in CONVERSIONS.items() if found is function)
    return tensor_text(value, kind, "")


def joined(parts: list[Variable]) -> TextVariable:
    """The parts of a format string, some of which tell of tensors, as one."""
    text: list[str | tuple[TensorVariable, int, str]] = []
    for part in parts:
        text += part.parts if isinstance(part, TextVariable) else [plain_value(part)]
    return TextVariable(text)
