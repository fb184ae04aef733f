"""torch's element types and devices, and the loop IR's."""

from __future__ import annotations

import torch

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Device

_TO_TORCH: dict[DType, torch.dtype] = {
    DType.bool_: torch.bool,
    DType.u8: torch.uint8,
    DType.u16: torch.uint16,
    DType.u32: torch.uint32,
    DType.u64: torch.uint64,
    DType.i8: torch.int8,
    DType.i16: torch.int16,
    DType.i32: torch.int32,
    DType.i64: torch.int64,
    DType.f16: torch.float16,
    DType.bf16: torch.bfloat16,
    DType.f32: torch.float32,
    DType.f64: torch.float64,
    DType.f8e4m3fn: torch.float8_e4m3fn,
    DType.f8e5m2: torch.float8_e5m2,
    DType.c64: torch.complex64,
    DType.c128: torch.complex128,
}
_FROM_TORCH = {theirs: ours for ours, theirs in _TO_TORCH.items()}


def to_torch_dtype(dtype: DType) -> torch.dtype:
    """torch's name for an element type."""
    return _TO_TORCH[dtype]


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """The loop IR's name for torch's element type. Raises KeyError for one it lacks."""
    return _FROM_TORCH[dtype]


def from_torch_device(device: torch.device) -> Device:
    """The loop IR's form of a torch device."""
    return Device(device.type, device.index)
