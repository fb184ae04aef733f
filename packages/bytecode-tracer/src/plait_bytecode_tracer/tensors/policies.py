"""What the code of a checkpoint's policy does, read from its bytecode.

A policy is called where the graph runs and where it is compiled, and as often as each pleases. So
it must only look at what it is given and at what it names, and write to nothing but what was made
for it alone: counts, say, that the maker of its contexts makes anew for each checkpoint.
"""

from __future__ import annotations

import builtins
import dis
import enum
import sys
import types
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import torch

from plait_bytecode_tracer.values.constants import is_constant
from plait_utils import dataclass

Tag = tuple[str, ...]
"""What a value on the stack is: a kind and names. Most are of no interest."""

_OTHER: Tag = ("other",)
_NULL: Tag = ("null",)
_SILENT = frozenset(
    {
        *("RESUME", "CACHE", "EXTENDED_ARG", "NOP", "COPY_FREE_VARS", "MAKE_CELL", "NOT_TAKEN"),
        *("PRECALL", "KW_NAMES", "JUMP_FORWARD", "JUMP_BACKWARD"),
    }
)
_EFFECTS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_CHECK"), (0, 1)),
    **dict.fromkeys(("POP_TOP", "STORE_FAST", "RETURN_VALUE"), (1, 0)),
    **dict.fromkeys(("UNARY_NOT", "UNARY_NEGATIVE", "TO_BOOL", "UNARY_INVERT"), (1, 1)),
    **dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "CONTAINS_OP", "IS_OP"), (2, 1)),
    **dict.fromkeys(("FORMAT_SIMPLE", "CONVERT_VALUE", "STORE_FAST_LOAD_FAST"), (1, 1)),
    "FORMAT_WITH_SPEC": (2, 1),
    "LOAD_FAST_LOAD_FAST": (0, 2),
    "STORE_FAST_STORE_FAST": (2, 0),
    "RETURN_CONST": (0, 0),
    "LIST_EXTEND": (1, 0),
    "SET_UPDATE": (1, 0),
    "LOAD_ASSERTION_ERROR": (0, 1),
}
"""How many values an instruction takes from the stack, and how many it leaves."""
_BUILDS = ("BUILD_STRING", "BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_SLICE")
_BRANCHES = ("POP_JUMP_", "JUMP_IF_")
_FUNCTIONS = frozenset(
    {str, repr, len, isinstance, issubclass, int, bool, float, tuple, type, hasattr, min, max, sum}
)
"""Builtins that only tell something of what they are given."""
_TELLING = frozenset(
    {
        *("get", "keys", "values", "items", "startswith", "endswith", "count", "index", "lower"),
        *("name", "dim", "size", "numel", "stride", "is_floating_point", "is_complex", "split"),
        *("overloads", "nelement", "element_size", "is_contiguous", "join"),
    }
)
"""Methods that only tell something of an object."""
_WRITING = frozenset(
    {"append", "add", "setdefault", "update", "pop", "clear", "extend", "insert", "discard"}
)
"""Methods that write to a container and to nothing else."""


def is_confined(function: types.FunctionType, own: Iterable[str] = ()) -> bool:
    """Whether a function looks, and writes to nothing but its own variables.

    `own` are the names of variables of its closure that hold containers made for it alone.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    names = frozenset(own)
    try:
        given = {n: cell.cell_contents for n, cell in cells.items() if n not in names}
    except ValueError:  # a cell is empty
        return False
    return code_is_confined(function.__code__, function.__globals__, given, names)


def code_is_confined(
    code: types.CodeType, globals_: dict[str, Any], free: dict[str, Any], own: frozenset[str]
) -> bool:
    """The same for code with its globals, and what the other variables of its closure hold."""
    return _Reader(globals_, free, own, {code}).reads(code)


def is_plain(value: Any, depth: int = 3) -> bool:
    """Whether looking at a value, or comparing with it, runs no code of the program."""
    if isinstance(value, enum.Enum):
        return type(value).__module__.startswith("torch.")
    if isinstance(value, type):
        return type(value) in (type, enum.EnumMeta)
    if is_constant(value) or isinstance(value, _DEFINITIONS):
        return True
    if type(value) in _CONTAINERS and depth:
        items = [*value.items()] if isinstance(value, dict) else [*value]
        return all(is_plain(item, depth - 1) for item in items)
    return False


_DEFINITIONS = (
    *(types.ModuleType, types.BuiltinFunctionType, torch._ops.OpOverload),
    *(torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator),
)
_UNKNOWN = object()
_CONTAINERS = (list, tuple, set, frozenset, dict)


@dataclass(slots=True)
class _Reader:
    """Follows code block by block: what lies on the stack where a block begins is not known."""

    globals: dict[str, Any]
    free: dict[str, Any]
    own: frozenset[str]
    reading: set[types.CodeType]
    stack: list[Tag] = field(default_factory=list)

    def reads(self, code: types.CodeType) -> bool:
        for instruction in dis.get_instructions(code):
            if instruction.is_jump_target:
                self.stack.clear()
            if not self._step(instruction):
                return False
        return True

    def _step(self, found: dis.Instruction) -> bool:
        name, argument = found.opname, found.arg or 0
        if name in _SILENT:
            return True
        if name in _EFFECTS:
            return self._change(*_EFFECTS[name])
        if name in _BUILDS:
            return self._change(argument, 1)
        if name.startswith(_BRANCHES):
            self.stack.clear()
            return True
        match name:
            case "PUSH_NULL":
                self.stack.append(_NULL)
            case "COPY":
                self.stack.append(self._at(argument))
            case "SWAP":
                self._fill(argument)
                self.stack[-1], self.stack[-argument] = self.stack[-argument], self.stack[-1]
            case "FORMAT_VALUE":
                return self._change(2 if argument & 4 else 1, 1)
            case "BUILD_MAP":
                return self._change(2 * argument, 1)
            case "LOAD_GLOBAL":
                return self._load_global(found)
            case "LOAD_DEREF":
                return self._load_free(found.argval)
            case "LOAD_ATTR" | "LOAD_METHOD":
                self._load_attribute(found)
            case "STORE_SUBSCR":
                return self._at(2)[0] == "own" and self._change(3, 0)
            case "CALL" | "CALL_KW":
                return self._call(argument, named=name == "CALL_KW")
            case _:
                return False
        return True

    def _fill(self, count: int) -> None:
        """Name what lies that deep, where it is from before the block."""
        self.stack[:0] = [_OTHER] * (count - len(self.stack))

    def _at(self, depth: int) -> Tag:
        self._fill(depth)
        return self.stack[-depth]

    def _change(self, taken: int, left: int) -> bool:
        del self.stack[max(len(self.stack) - taken, 0) :]
        self.stack += [_OTHER] * left
        return True

    def _load_global(self, found: dis.Instruction) -> bool:
        name = found.argval
        value = self._named(name)
        if not is_plain(value) and not isinstance(value, types.FunctionType):
            return False
        tags: list[Tag] = [("global", name)]
        if (found.arg or 0) & 1:
            tags.insert(1 if sys.version_info >= (3, 13) else 0, _NULL)
        self.stack += tags
        return True

    def _load_free(self, name: str) -> bool:
        if name in self.own:
            self.stack.append(("own", name))
            return True
        self.stack.append(_OTHER)
        return name in self.free and is_plain(self.free[name])

    def _load_attribute(self, found: dis.Instruction) -> None:
        owner = self._at(1)
        self._change(1, 0)
        is_method = found.opname == "LOAD_METHOD"
        is_method |= sys.version_info >= (3, 12) and bool((found.arg or 0) & 1)
        tag = ("method", owner[0], found.argval)
        self.stack += [tag, tag] if is_method else [tag]

    def _call(self, count: int, *, named: bool) -> bool:
        self._change(count + named, 0)
        pair: Sequence[Tag] = (self._at(2), self._at(1))
        self._change(2, 1)
        called = [tag for tag in pair if tag != _NULL]
        if not called:
            return False
        match called[0]:
            case ("method", owner, name):
                return name in _TELLING or (owner == "own" and name in _WRITING)
            case ("global", name):
                return self._calls(name)
        return False

    def _calls(self, name: str) -> bool:
        """Whether a function of the globals or builtins only looks as well."""
        found = self._named(name)
        if isinstance(found, types.FunctionType):
            if found.__code__ in self.reading or found.__closure__:
                return False
            inner = {*self.reading, found.__code__}
            return _Reader(found.__globals__, {}, frozenset(), inner).reads(found.__code__)
        return any(found is function for function in _FUNCTIONS)

    def _named(self, name: str) -> Any:
        """What a name of the globals or builtins stands for; an object of no class for none."""
        return self.globals.get(name, vars(builtins).get(name, _UNKNOWN))
