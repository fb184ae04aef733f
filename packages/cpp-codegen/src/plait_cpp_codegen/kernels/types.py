"""C++ names of element types, in memory and in registers."""

from __future__ import annotations

from plait_ir_lowering import DType

MEMORY: dict[DType, str] = {
    DType.bool_: "boolean",
    DType.u8: "uint8_t",
    DType.u16: "uint16_t",
    DType.u32: "uint32_t",
    DType.u64: "uint64_t",
    DType.i8: "int8_t",
    DType.i16: "int16_t",
    DType.i32: "int32_t",
    DType.i64: "int64_t",
    DType.f16: "f16",
    DType.bf16: "bf16",
    DType.f8e4m3fn: "f8e4m3fn",
    DType.f8e5m2: "f8e5m2",
    DType.f32: "float",
    DType.f64: "double",
    DType.c64: "c64",
    DType.c128: "c128",
}
"""How an element lies in memory."""

REGISTER: dict[DType, str] = MEMORY | {
    DType.bool_: "int32_t",
    DType.f16: "float",
    DType.bf16: "float",
    DType.f8e4m3fn: "float",
    DType.f8e5m2: "float",
}
"""What a lane holds: masks for bool, float for narrower floats."""


def is_supported(dtype: DType) -> bool:
    """Whether kernels can compute with this element type."""
    return dtype in MEMORY
