"""Reading index expressions and values back from text.

Both are Python syntax once `%name` and `$name` are made names; Python's own parser
reads them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait_ir_lowering import (
    DTYPES,
    OPS,
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Sym,
    Value,
    Var,
    as_index,
)
from plait_scheduler.program import Param

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


@dataclass(slots=True)
class ValueReader:
    """Reads values of one kernel."""

    index: IndexReader
    params: dict[str, Param]
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
                param = self.params[name]
                items = places.elts if isinstance(places, ast.Tuple) else [places]
                return Load(name, [self._place(item) for item in items], param.dtype)
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
            case "to" | "bitcast":
                return Op(name, [self.build(args[0])], DTYPES[ast.unparse(args[1])])
        if name not in OPS:
            raise ValueError(f"there is no operation {name!r}")
        return Op(name, [self.build(arg) for arg in args])


def _number(tree: ast.expr) -> bool | int | float:
    number = ast.literal_eval(tree)
    return float(number) if isinstance(number, str) else number
