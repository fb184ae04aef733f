"""Scalar values as torch expressions over all points of a kernel at once.

A value has one dimension for each loop variable, of size 1 where it does not vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from plait_ir_lowering import (
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Local,
    Masked,
    Op,
    Quotient,
    Remainder,
    Value,
    Var,
    atoms,
    bounds,
    post_order,
    stride_of,
)
from plait_scheduler.program import Param
from plait_scheduler.sizes import extent_of
from plait_scheduler.statements import unconditional
from plait_utils import dataclass

TORCH_DTYPES: dict[DType, str] = {
    DType.bool_: "torch.bool",
    DType.u8: "torch.uint8",
    DType.u16: "torch.uint16",
    DType.u32: "torch.uint32",
    DType.u64: "torch.uint64",
    DType.i8: "torch.int8",
    DType.i16: "torch.int16",
    DType.i32: "torch.int32",
    DType.i64: "torch.int64",
    DType.f16: "torch.float16",
    DType.bf16: "torch.bfloat16",
    DType.f32: "torch.float32",
    DType.f64: "torch.float64",
    DType.f8e4m3fn: "torch.float8_e4m3fn",
    DType.f8e5m2: "torch.float8_e5m2",
    DType.c64: "torch.complex64",
    DType.c128: "torch.complex128",
}
"""How torch's Python names each element type."""

_SPECIAL: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "fma": "torch.addcmul({2}, {0}, {1})",
    "floordiv": 'torch.div({0}, {1}, rounding_mode="floor")',
    "truncdiv": 'torch.div({0}, {1}, rounding_mode="trunc")',
    "rem": "torch.remainder({0}, {1})",
    "lshift": "torch.bitwise_left_shift({0}, {1})",
    "rshift": "torch.bitwise_right_shift({0}, {1})",
    "atan2": "torch.atan2({0}, {1})",
    "philox": "philox({0}, {1}, {2}, {3})",
    "box_muller_sin": "box_muller_sin({0}, {1})",
    "box_muller_cos": "box_muller_cos({0}, {1})",
    "approximate_log": "torch.log({0})",
    "approximate_exp": "torch.exp({0})",
}
"""Operations that torch writes or names otherwise."""

_LONG = 60
"""A value of more characters gets a line of its own."""


@dataclass(slots=True)
class ValueWriter:
    """Writes values of one kernel; what it needs first goes to `lines`."""

    params: dict[str, Param]
    variables: tuple[Var, ...]
    """The outer variables, then the inner ones: the dimensions of every value."""
    lines: list[str] = field(default_factory=list)
    uses: dict[Value, int] = field(default_factory=dict)
    texts: dict[tuple[Value, str], str] = field(default_factory=dict)
    grids: set[Var] = field(default_factory=set)
    """Variables whose values are needed as tensors."""
    count: int = 0

    def write(self, root: Value) -> str:
        """An expression for `root`, after the lines that it needs."""
        for value in post_order([root]):
            for operand in value.operands:
                self.uses[operand] = self.uses.get(operand, 0) + 1
        return self._deep_text(root, "")

    def _deep_text(self, root: Value, guard: str) -> str:
        """The text of `root`, parts first, so that deep values need no deep recursion."""
        certain = set(unconditional(root))
        for value in post_order([root]):
            if value in certain:
                self._text(value, guard)
        return self._text(root, guard)

    def index(self, expr: IndexExpr) -> str:
        """An index expression over grids; its text is Python already."""
        self.grids.update(atom for atom in atoms(expr) if isinstance(atom, Var))
        return str(expr)

    def _text(self, value: Value, guard: str) -> str:
        key = (value, guard)
        if key not in self.texts:
            text = self._compute(value, guard)
            simple = isinstance(value, Const | Local)
            if not simple and (self.uses.get(value, 0) > 1 or len(text) > _LONG):
                text = self._named(text)
            self.texts[key] = text
        return self.texts[key]

    def _named(self, text: str) -> str:
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {text}")
        return name

    def _compute(self, value: Value, guard: str) -> str:
        match value:
            case Load():
                return self._load(value, guard)
            case Const(number, dtype):
                return f"{constant_name(dtype)}({_number(number)})"
            case IndexValue(expr):
                return f"index({self.index(expr)})"
            case Op(name, args, dtype):
                return _operation(name, [self._text(arg, guard) for arg in args], dtype)
            case Masked(mask, inner, other):
                return self._masked(mask, inner, other, guard)
            case CheckedIndex(inner, size):
                under = f", {guard}" if guard else ""
                return f"check_index({self._text(inner, guard)}, {size}{under})"
            case Local():
                return value.name
        raise TypeError(f"unknown value {value!r}")

    def _masked(self, mask: Value, inner: Value, other: Value, guard: str) -> str:
        condition = self._text(mask, guard)
        under = f"({guard}) & ({condition})" if guard else condition
        if not under.isidentifier():
            under = self._named(under)
        fallback = self._text(other, guard)
        return f"torch.where({condition}, {self._deep_text(inner, under)}, {fallback})"

    def _load(self, load: Load, guard: str) -> str:
        param = self.params[load.buffer]
        plain = [at for at in load.index if isinstance(at, IndexExpr)]
        if len(plain) == len(load.index):
            strided = self._strided(param.name, param.layout, plain, guard)
            if strided is not None:
                return strided
        terms = [str(param.layout.offset)] if param.layout.offset.terms else []
        for at, stride in zip(load.index, param.layout.stride, strict=True):
            at_text = self.index(at) if isinstance(at, IndexExpr) else self._text(at, guard)
            if at_text != "0":
                terms.append(f"({at_text}) * {_grouped(stride)}")
        under = f", {guard}" if guard else ""
        offset = " + ".join(terms) or "0"
        return f"gather({param.name}, {offset}, {extent_of(param.layout)}{under})"

    def _strided(
        self, name: str, layout: Layout, index: Sequence[IndexExpr], guard: str
    ) -> str | None:
        offset = layout.linear(index)
        if guard and not self._in_bounds(index, layout):
            return None
        dimensions = strided_dimensions(offset, self.variables)
        if dimensions is None:
            return None
        sizes, strides, start = dimensions
        return f"strided({name}, {sizes}, {strides}, {start})"

    def _in_bounds(self, index: Sequence[IndexExpr], layout: Layout) -> bool:
        for at, size in zip(index, layout.size, strict=True):
            low, high = bounds(at)
            if low is None or high is None or low < 0 or not size.is_constant:
                return False
            if high >= size.as_int():
                return False
        return True


def strided_dimensions(
    offset: IndexExpr, variables: Sequence[Var], *, full: bool = False
) -> tuple[str, str, IndexExpr] | None:
    """Sizes and strides, one for each variable, and the start of an affine access.

    A variable that the access does not depend on has size 1, or its extent if `full`.
    None where the access is not affine, or goes backwards.
    """
    sizes: list[str] = []
    strides: list[str] = []
    start = offset
    for var in variables:
        stride = stride_of(offset, var)
        if stride is None or (bounds(stride)[0] or 0) < 0 or bounds(stride)[0] is None:
            return None
        start = start - var.expr * stride
        varies = bool(stride.terms) and bool(var.expr.terms)
        sizes.append(str(var.extent) if varies or full else "1")
        strides.append(str(stride) if varies else "0")
    if any(isinstance(atom, Var | Quotient | Remainder) for atom in atoms(start)):
        return None
    return _tuple(sizes), _tuple(strides), start


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _grouped(expr: IndexExpr) -> str:
    return str(expr) if len(expr.terms) <= 1 else f"({expr})"


def _operation(name: str, args: Sequence[str], dtype: DType) -> str:
    if name == "to":
        return f"{_receiver(args[0])}.to({TORCH_DTYPES[dtype]})"
    if name == "bitcast":
        return f"{_receiver(args[0])}.view({TORCH_DTYPES[dtype]})"
    if name in _SPECIAL:
        special = _SPECIAL[name]
        grouped = args if special.startswith("torch.") else [_receiver(arg) for arg in args]
        return special.format(*grouped)
    return f"torch.{name}({', '.join(args)})"


def _receiver(text: str) -> str:
    """`text` as an operand of a method or an operator."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if (letter == " " and depth == 0) or (letter == "-" and at == 0):
            return f"({text})"
    return text


def constant_name(dtype: DType) -> str:
    """The host function that makes a 0-d tensor of this element type."""
    name = TORCH_DTYPES[dtype].removeprefix("torch.")
    return "bool_" if name == "bool" else name


def _number(number: bool | int | float) -> str:
    text = repr(number)
    return f'float("{text}")' if text in ("nan", "inf", "-inf") else text
