"""Element types of the loop IR, named as the IR prints them."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type: its printed name, size in bytes and kind."""

    bool_ = ("bool", 1, "bool")
    u8 = ("u8", 1, "int")
    u16 = ("u16", 2, "int")
    u32 = ("u32", 4, "int")
    u64 = ("u64", 8, "int")
    i8 = ("i8", 1, "int")
    i16 = ("i16", 2, "int")
    i32 = ("i32", 4, "int")
    i64 = ("i64", 8, "int")
    f16 = ("f16", 2, "float")
    bf16 = ("bf16", 2, "float")
    f32 = ("f32", 4, "float")
    f64 = ("f64", 8, "float")
    f8e4m3fn = ("f8e4m3fn", 1, "float")
    f8e5m2 = ("f8e5m2", 1, "float")
    c64 = ("c64", 8, "complex")
    c128 = ("c128", 16, "complex")

    def __init__(self, text: str, itemsize: int, kind: str) -> None:
        self.text = text
        self.itemsize = itemsize
        self.kind = kind

    def __str__(self) -> str:
        return self.text

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for integers that are not bool."""
        return self.kind == "int"

    @property
    def is_signed(self) -> bool:
        return self.kind in ("float", "complex") or self.text.startswith("i")

    @property
    def is_reduced_precision(self) -> bool:
        """True for floats narrower than f32, which compute in f32."""
        return self.kind == "float" and self.itemsize < 4


DTYPES: dict[str, DType] = {dtype.text: dtype for dtype in DType}
"""Element types by printed name."""
