"""Casts and constants as Triton expressions."""

from __future__ import annotations

import math

import torch

from plait_ir_lowering import Const, DType, Value, to_torch_dtype
from plait_triton_codegen.kernels.operations import TRITON_DTYPES, kind_of

BYTES = (DType.f8e4m3fn, DType.f8e5m2)
"""Floats of 8 bits."""
_LARGE = int(torch.tensor(float("inf")).to(torch.float8_e4m3fn).view(torch.uint8))
"""The bits that this torch rounds to where a number is too large for f8e4m3fn."""


def cast(text: str, source: DType, target: DType) -> str:
    """A value converted as ATen's copy does."""
    kind_of(source)
    kind_of(target)
    if source is target:
        return text
    through = source.is_reduced_precision and target is not DType.f32
    wide = f"{grouped(text)}.to(tl.float32)" if through else grouped(text)
    if target is DType.bool_:
        return f"{wide} != 0"
    if target.is_reduced_precision and source is not DType.f32 and not through:
        wide = f"{wide}.to(tl.float32)"
    if target is DType.f8e4m3fn:
        return f"device.to_f8e4m3fn({wide}, {_LARGE})"
    if target is DType.f8e5m2:
        return f"device.to_f8e5m2({wide})"
    return f"{wide}.to({TRITON_DTYPES[target]})"


def bitcast(text: str, source: DType, target: DType) -> str:
    """The same bits as another type of the same size."""
    if source is target:
        return text
    if target is DType.bool_:
        return f"{grouped(text)} != 0"
    if source is DType.bool_:
        return f"{grouped(text)}.to({TRITON_DTYPES[target]})"
    return f"{grouped(text)}.to({TRITON_DTYPES[target]}, bitcast=True)"


def constant(const: Const) -> str:
    """A constant with its type."""
    dtype = const.dtype
    kind_of(dtype)
    if dtype is DType.bool_:
        return f"tl.full([], {bool(const.value)}, tl.int1)"
    if dtype.is_reduced_precision:
        return cast(f"tl.full([], {literal(const)}, tl.float32)", DType.f32, dtype)
    return f"tl.full([], {literal(const)}, {TRITON_DTYPES[dtype]})"


def exact_inverse(value: Value) -> Const | None:
    """1 / value, where multiplying with it gives what dividing by the value does."""
    if not isinstance(value, Const) or not 2**-14 <= abs(value.value) <= 2**14:
        return None
    is_power = abs(math.frexp(value.value)[0]) == 0.5
    return Const(1 / value.value, value.dtype) if is_power else None


def literal(const: Const) -> str:
    """A constant as a Python number; narrow floats are rounded to their type."""
    number = const.value
    if const.dtype.is_float and const.dtype is not DType.f64:
        number = torch.tensor(number, dtype=to_torch_dtype(const.dtype)).item()
        short = repr(const.value)
        same = torch.tensor(float(short), dtype=to_torch_dtype(const.dtype)).item() == number
        if const.dtype is DType.f32 and same:
            number = float(short)
    text = repr(number)
    return f'float("{text}")' if text in ("nan", "inf", "-inf") else text


def grouped(text: str) -> str:
    """`text` in brackets unless it is a name, a number or a call."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if (letter == " " and depth == 0) or (letter in "-~" and at == 0):
            return f"({text})"
    return text
