"""Constants of a host program in C++: arrays of sizes and strides, tensor descriptions, texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.kernels.index import c_index
from plait_ir_lowering import DType, IndexExpr, Layout
from plait_scheduler import ProgramBuffer
from plait_utils import dataclass

Number: TypeAlias = int | IndexExpr
"""A number, or one that follows from sizes that are known only when the program runs."""

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


OR_DONE = "if (code) goto done;"
"""Behind what gives a code: an error ends the run."""


class Described(NamedTuple):
    """What a `TensorSpec` tells of a tensor."""

    dtype: DType
    layout: Layout
    is_on_host: bool = False
    """Whether it is in the host's memory, of a program on a GPU."""


def described(
    buffer: ProgramBuffer, view: Layout | None = None, dtype: DType | None = None
) -> Described:
    """A buffer, or what is seen of it."""
    on_host = buffer.device.type == "cpu"
    return Described(dtype or buffer.dtype, view or buffer.layout, on_host)


@dataclass(slots=True)
class Tables:
    """The definitions that a host program starts with; equal arrays are one.

    Args:
        device: where tensors are: 0 for the CPU, n + 1 for the GPU n.
    """

    device: int = 0
    lines: list[str] = field(default_factory=list)
    open_lines: list[str] = field(default_factory=list)
    """Those over sizes that are known only when the program runs: what a run begins with."""
    _arrays: dict[tuple[Number, ...], str] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    """The names that `open_lines` define."""

    def define(self, type_: str, name: str, text: str) -> None:
        """A constant; of each run, where its text names one of these."""
        if self._open.isdisjoint(re.findall(r"\w+", text)):
            self.lines.append(f"static const {type_} {name} = {text};")
        else:
            self.define_open(type_, name, text)

    def define_open(self, type_: str, name: str, text: str) -> None:
        """A constant of each run."""
        self._open.add(name.partition("[")[0])
        self.open_lines.append(f"const {type_} {name} = {text};")

    def array(self, numbers: tuple[Number, ...]) -> str:
        """A pointer to constant int64_t numbers."""
        numbers = tuple(map(_known, numbers))
        if numbers not in self._arrays:
            name = f"numbers{len(self._arrays)}"
            self._arrays[numbers] = name
            items = ", ".join(map(integer, numbers)) or "0"
            is_open = any(isinstance(each, IndexExpr) for each in numbers)
            define = self.define_open if is_open else self.define
            define("int64_t", f"{name}[]", f"{{{items}}}")
        return f"&{self._arrays[numbers]}[0]"

    def spec(self, tensor: Described) -> str:
        """A `TensorSpec`."""
        dtype, layout, is_on_host = tensor
        code = _DLPACK_CODES.get(dtype, _DLPACK_KINDS[dtype.kind])
        if dtype.kind == "int" and not dtype.is_signed:
            code = 1
        sizes, strides = self.array(layout.size), self.array(layout.stride)
        bits, rank = dtype.itemsize * 8, len(layout.size)
        on = f", {self.device}" if self.device and not is_on_host else ""
        return f"{{{code}, {bits}, {rank}, {scalar_type(dtype)}, {sizes}, {strides}{on}}}"

    def specs(self, name: str, tensors: Iterable[Described]) -> str:
        """A constant array of `TensorSpec` of that name; its pointer."""
        items = [self.spec(tensor) for tensor in tensors]
        if not items:
            return "0"
        text = ",\n  ".join(items)
        self.define("TensorSpec", f"{name}[]", f"{{{text}}}")
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


def _known(number: Number) -> Number:
    return number.constant if isinstance(number, IndexExpr) and number.is_constant else number


def integer(number: Number) -> str:
    """C++ of type int64_t. Raises UnsupportedProgramError beyond 64 bits."""
    if isinstance(number, IndexExpr):
        return c_index(number)
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
