"""Constants of a host program in C++: arrays of sizes and strides, tensor descriptions, texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_ir_lowering import DType, Layout
from plait_utils import dataclass

SCALAR_TYPES: dict[DType, int] = {
    DType.u8: 0,
    DType.i8: 1,
    DType.i16: 2,
    DType.i32: 3,
    DType.i64: 4,
    DType.f16: 5,
    DType.f32: 6,
    DType.f64: 7,
    DType.c64: 9,
    DType.c128: 10,
    DType.bool_: 11,
    DType.bf16: 15,
    DType.f8e5m2: 23,
    DType.f8e4m3fn: 24,
    DType.u16: 27,
    DType.u32: 28,
    DType.u64: 29,
}
"""torch's numbers of element types (c10/core/ScalarType.h)."""

_DLPACK_KINDS = {"int": 0, "float": 2, "complex": 5, "bool": 6}
_DLPACK_CODES = {DType.bf16: 4, DType.f8e4m3fn: 10, DType.f8e5m2: 12}


@dataclass(slots=True)
class Tables:
    """The definitions that a host program starts with; equal arrays are one."""

    lines: list[str] = field(default_factory=list)
    _arrays: dict[tuple[int, ...], str] = field(default_factory=dict)

    def array(self, numbers: tuple[int, ...]) -> str:
        """A pointer to constant int64_t numbers."""
        if numbers not in self._arrays:
            name = f"numbers{len(self._arrays)}"
            self._arrays[numbers] = name
            items = ", ".join(map(integer, numbers)) or "0"
            self.lines.append(f"static const int64_t {name}[] = {{{items}}};")
        return f"&{self._arrays[numbers]}[0]"

    def spec(self, dtype: DType, layout: Layout) -> str:
        """A `TensorSpec`. Raises UnsupportedProgramError for sizes known only at run time."""
        code = _DLPACK_CODES.get(dtype, _DLPACK_KINDS[dtype.kind])
        if dtype.kind == "int" and not dtype.is_signed:
            code = 1
        sizes = self.array(tuple(size.as_int() for size in layout.size))
        strides = self.array(tuple(stride.as_int() for stride in layout.stride))
        bits, rank = dtype.itemsize * 8, len(layout.size)
        return f"{{{code}, {bits}, {rank}, {scalar_type(dtype)}, {sizes}, {strides}}}"

    def specs(self, name: str, tensors: Iterable[tuple[DType, Layout]]) -> str:
        """A constant array of `TensorSpec` of that name; its pointer."""
        items = [self.spec(dtype, layout) for dtype, layout in tensors]
        if not items:
            return "0"
        text = ",\n  ".join(items)
        self.lines.append(f"static const TensorSpec {name}[] = {{{text}}};")
        return name

    def texts(self, name: str, texts: Sequence[str]) -> str:
        """A constant array of C strings of that name; its pointer."""
        if not texts:
            return "0"
        items = ", ".join(map(string, texts))
        self.lines.append(f"static const char* const {name}[] = {{{items}}};")
        return name


def scalar_type(dtype: DType) -> int:
    """torch's number of an element type."""
    return SCALAR_TYPES[dtype]


def integer(number: int) -> str:
    """A C++ literal of type int64_t. Raises UnsupportedProgramError beyond 64 bits."""
    if not -(2**63) <= number < 2**63:
        raise UnsupportedProgramError(f"the integer {number}, which needs more than 64 bits")
    return "(-9223372036854775807 - 1)" if number == -(2**63) else str(number)


def real(number: float) -> str:
    """A C++ expression of type double."""
    if math.isnan(number):
        return '__builtin_nan("")'
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf()"
    return repr(number)


def string(text: str) -> str:
    """A C string literal: UTF-8, everything but plain ASCII in octal."""
    plain = [
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}"
        for byte in text.encode()
    ]
    return f'"{"".join(plain)}"'
