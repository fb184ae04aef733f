"""Relations as small programs for the native check: integers, or floats, on a stack."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum

from plait_utils import dataclass


class Op(IntEnum):
    """The instructions; the numbers of the enum of relation.h. Each has an operand."""

    CONSTANT = 0
    LEAF = 1
    ADD = 2
    SUB = 3
    MUL = 4
    FLOORDIV = 5
    MOD = 6
    NEG = 7
    LT = 8
    LE = 9
    EQ = 10
    NE = 11
    GT = 12
    GE = 13
    AND = 14
    OR = 15
    NOT = 16
    TRUTH = 17
    MIN = 18
    MAX = 19
    TRUEDIV = 20
    POW = 21


_READS = {"": 0, "size": 1, "stride": 2}
_BINARY: dict[type[ast.operator], Op] = {
    ast.Add: Op.ADD,
    ast.Sub: Op.SUB,
    ast.Mult: Op.MUL,
    ast.FloorDiv: Op.FLOORDIV,
    ast.Mod: Op.MOD,
}
_OF_FLOATS: dict[type[ast.operator], Op] = {
    ast.Add: Op.ADD,
    ast.Sub: Op.SUB,
    ast.Mult: Op.MUL,
    ast.Div: Op.TRUEDIV,
    ast.Pow: Op.POW,
}
_COMPARISONS: dict[type[ast.cmpop], Op] = {
    ast.Lt: Op.LT,
    ast.LtE: Op.LE,
    ast.Eq: Op.EQ,
    ast.NotEq: Op.NE,
    ast.Gt: Op.GT,
    ast.GtE: Op.GE,
}
_EXTREMES = {"min": Op.MIN, "max": Op.MAX}
_DEEPEST = _MOST_LEAVES = 32
_BOUND = 1 << 62
_EXACT = 1 << 53
"""Up to here floats are exact."""


class _Foreign(Exception):
    """Something that the programs have no instruction for."""


@dataclass(slots=True)
class _Writer:
    names: dict[str, int]
    """The positions of the values that are read."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    leaves: list[tuple[int, int, int]] = field(default_factory=list)
    constants: list[float] = field(default_factory=list)
    """Floats that CONSTANT is followed by the places of; without floats, by the number itself."""
    depth: int = 0
    deepest: int = 0

    def emit(self, op: Op, operand: int = 0, *, takes: int = 0) -> None:
        self.steps.append((int(op), operand))
        self.depth += 1 - takes
        self.deepest = max(self.deepest, self.depth)

    def truth(self, node: ast.expr) -> None:
        """A condition: 0 or 1."""
        match node:
            case ast.BoolOp(op=joint, values=[first, *others]):
                self.truth(first)
                for other in others:
                    self.truth(other)
                    self.emit(Op.AND if isinstance(joint, ast.And) else Op.OR, takes=2)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.truth(operand)
                self.emit(Op.NOT, takes=1)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for place, (op, right) in enumerate(zip(ops, comparators, strict=True)):
                    self.number(left)
                    self.number(right)
                    if type(op) not in _COMPARISONS:
                        raise _Foreign
                    self.emit(_COMPARISONS[type(op)], takes=2)
                    if place:
                        self.emit(Op.AND, takes=2)
                    left = right
            case ast.Constant(value=bool() as value):
                self.constant(int(value))
            case _:
                self.number(node)
                self.emit(Op.TRUTH, takes=1)

    def number(self, node: ast.expr) -> None:
        """An int."""
        match node:
            case ast.Constant(value=value):
                self.constant(value)
            case ast.Name(id=name) if name in self.names:
                self.leaf(name, "", 0)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr=read),
                args=[ast.Constant(value=int() as dim)],
            ) if name in self.names and read in _READS:
                self.leaf(name, read, dim)
            case ast.Call(func=ast.Name(id=name), args=[first, *others]) if name in _EXTREMES:
                self.number(first)
                for other in others:
                    self.number(other)
                    self.emit(_EXTREMES[name], takes=2)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                self.number(left)
                self.number(right)
                self.emit(_BINARY[type(op)], takes=2)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self.number(operand)
                self.emit(Op.NEG, takes=1)
            case _:
                raise _Foreign

    def constant(self, value: object) -> None:
        """A number of the text."""
        if type(value) is not int or abs(value) >= 2 * _BOUND:
            raise _Foreign
        self.emit(Op.CONSTANT, value)

    def leaf(self, name: str, read: str, dim: int) -> None:
        entry = (self.names[name], _READS[read], dim)
        if entry not in self.leaves:
            self.leaves.append(entry)
        self.emit(Op.LEAF, self.leaves.index(entry))


@dataclass(slots=True)
class _FloatWriter(_Writer):
    """Of conditions over floats and numbers that are exact as such."""

    known: Mapping[str, object] = field(default_factory=dict)
    """The objects that names stand for."""

    def number(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=value):
                self.constant(value)
            case ast.Name(id=name) if name in self.names:
                self.leaf(name, "", 0)
            case ast.Name(id=name):
                self.constant(self.known.get(name))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OF_FLOATS:
                self.number(left)
                self.number(right)
                self.emit(_OF_FLOATS[type(op)], takes=2)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self.number(operand)
                self.emit(Op.NEG, takes=1)
            case _:
                raise _Foreign

    def constant(self, value: object) -> None:
        if type(value) is not float and not (type(value) is int and abs(value) < _EXACT):
            raise _Foreign
        self.emit(Op.CONSTANT, len(self.constants))
        self.constants.append(float(value))


Program = tuple[
    tuple[int, ...], tuple[int, ...], tuple[tuple[int, int, int], ...], tuple[float, ...]
]
"""Instructions, their operands, for each number read which value, how, and dimension, and
constants: where there are such, all numbers are floats."""


def program(code: str, names: list[str], known: Mapping[str, object]) -> Program | None:
    """The program of a condition over the values of these names; None where there is none.

    Args:
        code: an expression of Python.
        names: of the values, in their order.
        known: the objects that other names stand for.
    """
    places = {name: place for place, name in enumerate(names)}
    tree = ast.parse(code, mode="eval").body
    for writer in (_Writer(places), _FloatWriter(places, known=known)):
        try:
            writer.truth(tree)
        except _Foreign:
            continue
        if writer.deepest > _DEEPEST or len(writer.leaves) > _MOST_LEAVES:
            return None
        ops, operands = zip(*writer.steps, strict=True)
        return ops, operands, tuple(writer.leaves), tuple(writer.constants)
    return None
