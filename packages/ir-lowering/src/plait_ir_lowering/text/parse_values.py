"""Reading index expressions and values back from text.

Both are Python syntax once `%name` and `$name` are made names; Python's own parser
reads them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

from plait_ir_lowering.ir.dtypes import DTYPES, DType
from plait_ir_lowering.ir.graph import (
    Device,
    ExternArg,
    ExternList,
    Layout,
    Origin,
    OutputRef,
    TensorRef,
    place_name,
)
from plait_ir_lowering.ir.index import IndexExpr, Sym, Var, as_index
from plait_ir_lowering.ir.ops import OPS
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
)
from plait_utils import dataclass

_LOCAL, _PART = "local_of_kernel_", "shared_part_"
_INT: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}


def split_commas(text: str) -> list[str]:
    """The parts between commas that are not inside brackets or quotes."""
    parts: list[str] = []
    depth, start, quoted = 0, 0, False
    for at, letter in enumerate(text):
        if letter == '"' and (at == 0 or text[at - 1] != "\\"):
            quoted = not quoted
        if quoted:
            continue
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


@dataclass(slots=True)
class IndexReader:
    """Reads index expressions over known variables and sizes."""

    names: dict[str, Var | Sym]

    def parse(self, text: str) -> IndexExpr:
        return self.build(ast.parse(text.strip(), mode="eval").body)

    def build(self, tree: ast.expr) -> IndexExpr:
        match tree:
            case ast.Constant(int(number)):
                return as_index(number)
            case ast.Name(name):
                return self.names[name].expr
            case ast.UnaryOp(ast.USub(), operand):
                return -self.build(operand)
            case ast.BinOp(left, operator, right):
                return self._binary(self.build(left), _INT[type(operator)], self.build(right))
        raise ValueError(f"{ast.unparse(tree)!r} is not an index expression")

    def _binary(self, left: IndexExpr, operator: str, right: IndexExpr) -> IndexExpr:
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "//":
                return left // right
        return left % right


class Typed(Protocol):
    """A buffer or parameter, as far as loads need it."""

    @property
    def dtype(self) -> DType: ...


@dataclass(slots=True)
class ValueReader:
    """Reads values over known buffers and locals."""

    index: IndexReader
    buffers: Mapping[str, Typed]
    dtypes: dict[str, DType] = field(default_factory=dict)
    """The element type of each local so far."""
    parts: dict[str, Value] = field(default_factory=dict)

    def parse(self, text: str) -> Value:
        named = re.sub(r"%(?=[A-Za-z_])", _LOCAL, text).replace("$", _PART)
        return self.build(ast.parse(named, mode="eval").body)

    def build(self, tree: ast.expr) -> Value:
        match tree:
            case ast.Name(name) if name.startswith(_LOCAL):
                local = name.removeprefix(_LOCAL)
                return Local(local, self.dtypes[local])
            case ast.Name(name) if name.startswith(_PART):
                return self.parts[name.removeprefix(_PART)]
            case ast.Subscript(ast.Name(name), places):
                buffer = self.buffers[name]
                items = places.elts if isinstance(places, ast.Tuple) else [places]
                return Load(name, [self._place(item) for item in items], buffer.dtype)
            case ast.Call(ast.Name(name), args):
                return self._call(name, args)
        raise ValueError(f"{ast.unparse(tree)!r} is not a value")

    def _place(self, tree: ast.expr) -> IndexExpr | Value:
        computed = isinstance(tree, ast.Call | ast.Subscript) or (
            isinstance(tree, ast.Name) and tree.id.startswith((_LOCAL, _PART))
        )
        return self.build(tree) if computed else self.index.build(tree)

    def _call(self, name: str, args: Sequence[ast.expr]) -> Value:
        if name in DTYPES:
            return Const(_number(args[0]), DTYPES[name])
        match name:
            case "index":
                return IndexValue(self.index.build(args[0]))
            case "masked":
                mask, inner, other = (self.build(arg) for arg in args)
                return Masked(mask, inner, other)
            case "checked":
                return CheckedIndex(self.build(args[0]), self.index.build(args[1]))
            case "pack":
                return Pack([self.build(arg) for arg in args])
            case "to" | "bitcast":
                return Op(name, [self.build(args[0])], DTYPES[ast.unparse(args[1])])
        if name not in OPS:
            raise ValueError(f"there is no operation {name!r}")
        return Op(name, [self.build(arg) for arg in args])


def _number(tree: ast.expr) -> bool | int | float:
    number = ast.literal_eval(tree)
    return float(number) if isinstance(number, str) else number


def parse_layout(text: str, index: IndexReader) -> tuple[DType, Layout]:
    """What `print_layout` printed."""
    found = re.fullmatch(r"(\w+)\[([^\]]*)\](?: stride \[([^\]]*)\] offset (.+))?", text)
    if found is None:
        raise ValueError(f"{text!r} is not an element type and a layout")
    size = tuple(index.parse(part) for part in split_commas(found[2]))
    if found[3] is None:
        return DTYPES[found[1]], Layout.of(size)
    stride = tuple(index.parse(part) for part in split_commas(found[3]))
    return DTYPES[found[1]], Layout(size, stride, index.parse(found[4]))


def parse_output(text: str, index: IndexReader) -> OutputRef:
    """What `print_argument` printed of an output."""
    out = parse_argument(text, index)
    if isinstance(out, complex | str | DType | Device | ExternList):
        raise ValueError(f"{text!r} cannot be an output")
    return out


def parse_argument(text: str, index: IndexReader) -> ExternArg:
    """An argument of an external call; `index` reads the expressions in it.

    Raises:
        SyntaxError: it is no Python expression.
    """
    return _argument_of(ast.parse(text, mode="eval").body, index)


def parse_refs(text: str, index: IndexReader) -> tuple[TensorRef, ...]:
    """Tensors, separated by commas. Raises ValueError for anything else."""
    found = [parse_argument(part, index) for part in split_commas(text)]
    refs = tuple(each for each in found if isinstance(each, TensorRef))
    if len(refs) < len(found):
        raise ValueError(f"{text!r} are not tensors")
    return refs


def parse_factors(text: str, index: IndexReader) -> tuple[tuple[TensorRef, TensorRef], ...]:
    """Pairs of tensors as ``a @ b``, separated by commas. Raises ValueError for anything else."""
    found = []
    for part in split_commas(text):
        left, _, right = part.partition(" @ ")
        pair = parse_refs(f"{left}, {right}", index)
        if len(pair) != 2:
            raise ValueError(f"{part!r} is not a product")
        found.append((pair[0], pair[1]))
    return tuple(found)


def parse_sums(text: str, values: ValueReader) -> tuple[Load | None, ...]:
    """Where a mixture adds weights. Raises ValueError for anything else."""
    values.dtypes |= {place_name(number): DType.i64 for number in range(text.count("%"))}
    found: list[Load | None] = []
    for part in split_commas(text):
        place = None if part == "rows" else values.parse(part)
        if not isinstance(place, Load | None):
            raise ValueError(f"{part!r} is not a place in a buffer")
        found.append(place)
    return tuple(found)


def _argument_of(tree: ast.expr, index: IndexReader) -> ExternArg:
    match tree:
        case ast.Constant(value) if value is None or isinstance(value, bool | int | float | str):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
            return -number
        case ast.Name(name):
            return TensorRef(name)
        case ast.Attribute(ast.Name("dtype"), name):
            return DTYPES[name]
        case ast.List(items):
            return ExternList(tuple(_argument_of(item, index) for item in items))
        case ast.Call(ast.Name("index"), [expr]):
            return index.build(expr)
        case ast.Call(ast.Name("float"), [ast.Constant(str(number))]):
            return float(number)
        case ast.Call(ast.Name("complex"), [ast.Constant(str(number))]):
            return complex(number)
        case ast.Call(ast.Name("device"), [kind, number]):
            return Device(ast.literal_eval(kind), ast.literal_eval(number))
        case ast.Call(ast.Attribute(ast.Name(name), "view"), parts):
            return _view(name, parts, index)
    raise ValueError(f"{ast.unparse(tree)!r} is not an argument")


def _view(name: str, parts: Sequence[ast.expr], index: IndexReader) -> TensorRef:
    dtype: DType | None = None
    if parts and isinstance(parts[-1], ast.Attribute):
        dtype = DTYPES[parts[-1].attr]
        parts = parts[:-1]
    if not parts:
        return TensorRef(name, None, dtype)
    size, stride, offset = parts
    if not isinstance(size, ast.List) or not isinstance(stride, ast.List):
        raise ValueError("a view has a list of sizes and a list of strides")
    layout = Layout(
        tuple(index.build(item) for item in size.elts),
        tuple(index.build(item) for item in stride.elts),
        index.build(offset),
    )
    return TensorRef(name, layout, dtype)


def parse_origin(comment: str) -> Origin:
    """What `print_origin` printed, without the words before it; empty text is no origin."""
    nodes, lines = json.loads(comment) if comment else ((), ())
    return Origin(tuple(nodes), tuple(lines))
