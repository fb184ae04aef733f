"""Values, layouts, arguments and origins as text; `parse_values.py` reads them back.

Values print as nested calls; a part that one value uses more than once, or that is nested
very deeply, stands on a line of its own before it, as `$0`, `$1` and so on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import (
    Device,
    ExternArg,
    ExternList,
    Layout,
    Origin,
    OutputRef,
    TensorRef,
)
from plait_ir_lowering.ir.index import IndexExpr
from plait_ir_lowering.ir.values import (
    CheckedIndex,
    Const,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Pack,
    Value,
    post_order,
)

_CASTS = ("to", "bitcast")
_DEEPEST = 40
"""Calls nested deeper than this are printed on several lines."""


def print_value(root: Value, first: int = 0) -> tuple[list[str], str]:
    """Lines that define `$0`, `$1`, ..., and the text of `root` in terms of these.

    Where a line has several values, those of the second begin with the number `first`.
    """
    lines, (text,) = print_values([root], first)
    return lines, text


def print_values(roots: Sequence[Value], first: int = 0) -> tuple[list[str], list[str]]:
    """Lines that define `$0`, `$1`, ..., and the text of each of `roots` in terms of these."""
    uses: dict[Value, int] = {}
    order = list(post_order(roots))
    for value in order:
        for operand in value.operands:
            uses[operand] = uses.get(operand, 0) + 1
    lines: list[str] = []
    texts: dict[Value, str] = {}
    depth: dict[Value, int] = {}
    for value in order:
        text = _value(value, texts)
        depth[value] = 1 + max((depth[operand] for operand in value.operands), default=0)
        shared = uses.get(value, 0) > 1 or depth[value] > _DEEPEST
        if shared and isinstance(value, Op | Masked | CheckedIndex | Load):
            name = f"${first + len(lines)}"
            lines.append(f"{name} = {text}")
            text, depth[value] = name, 0
        texts[value] = text
    return lines, [texts[root] for root in roots]


def _value(value: Value, texts: dict[Value, str]) -> str:
    match value:
        case Load(buffer, index, _):
            places = [texts[at] if isinstance(at, Value) else str(at) for at in index]
            return f"{buffer}[{', '.join(places) or '()'}]"
        case Const(number, dtype):
            return f"{dtype}({_number(number)})"
        case IndexValue(expr):
            return f"index({expr})"
        case Op(name, args, dtype):
            cast = [str(dtype)] if name in _CASTS else []
            return f"{name}({', '.join([*(texts[arg] for arg in args), *cast])})"
        case Masked(mask, inner, other):
            return f"masked({texts[mask]}, {texts[inner]}, {texts[other]})"
        case CheckedIndex(inner, size):
            return f"checked({texts[inner]}, {size})"
        case Local(name, dtype):
            return f"%{name}"
        case Pack(items):
            return f"pack({', '.join(texts[item] for item in items)})"
    raise TypeError(f"unknown value {value!r}")


def _number(number: bool | int | float) -> str:
    if isinstance(number, float) and not math.isfinite(number):
        return f'"{number}"'
    return repr(number)


def print_layout(dtype: DType, layout: Layout) -> str:
    """Element type and layout; strides and offset only where they are not the usual."""
    text = f"{dtype}[{', '.join(map(str, layout.size))}]"
    if layout != Layout.of(layout.size):
        text += f" stride [{', '.join(map(str, layout.stride))}] offset {layout.offset}"
    return text


def print_origin(origin: Origin) -> str:
    """Where a part comes from, as a comment; empty where nothing is known."""
    if not origin.nodes and not origin.lines:
        return ""
    return f" # from {json.dumps([list(origin.nodes), list(origin.lines)])}"


def print_argument(arg: ExternArg | OutputRef) -> str:
    """An argument of an external call, or an output."""
    match arg:
        case TensorRef(buffer, view, dtype):
            return buffer if view is None and dtype is None else _view(buffer, view, dtype)
        case IndexExpr():
            return f"index({arg})"
        case DType():
            return f"dtype.{arg}"
        case Device(kind, index):
            return f"device({json.dumps(kind)}, {index})"
        case ExternList(items):
            return f"[{', '.join(print_argument(item) for item in items)}]"
        case float() if not math.isfinite(arg):
            return f'float("{arg}")'
        case complex():
            return f'complex("{arg}")'
        case str():
            return json.dumps(arg)
    return repr(arg)


def print_sums(sums: Sequence[Load | None]) -> str:
    """Where a mixture adds weights, after what it multiplies; "" if nowhere."""
    shown = ", ".join("rows" if each is None else print_value(each)[1] for each in sums)
    return f" adding {shown}" if shown else ""


def _view(buffer: str, view: Layout | None, dtype: DType | None) -> str:
    parts: list[str] = []
    if view is not None:
        size, stride = (", ".join(map(str, part)) for part in (view.size, view.stride))
        parts += [f"[{size}]", f"[{stride}]", str(view.offset)]
    if dtype is not None:
        parts.append(f"dtype.{dtype}")
    return f"{buffer}.view({', '.join(parts)})"
