"""What instructions take from the stack, what they leave, and where they go on."""

from __future__ import annotations

import sys
from dis import Instruction

from plait_utils import dataclass

_EFFECTS: dict[str, tuple[int, int]] = {
    "LOAD_ATTR": (1, 1),
    "STORE_ATTR": (2, 0),
    "DELETE_ATTR": (1, 0),
    "BINARY_OP": (2, 1),
    "BINARY_SUBSCR": (2, 1),
    "BINARY_SLICE": (3, 1),
    "STORE_SUBSCR": (3, 0),
    "STORE_SLICE": (4, 0),
    "DELETE_SUBSCR": (2, 0),
    "COMPARE_OP": (2, 1),
    "CONTAINS_OP": (2, 1),
    "IS_OP": (2, 1),
    "UNARY_NEGATIVE": (1, 1),
    "UNARY_POSITIVE": (1, 1),
    "UNARY_INVERT": (1, 1),
    "UNARY_NOT": (1, 1),
    "TO_BOOL": (1, 1),
    "FORMAT_SIMPLE": (1, 1),
    "FORMAT_WITH_SPEC": (2, 1),
    "CONVERT_VALUE": (1, 1),
    "CALL_INTRINSIC_1": (1, 1),
    "CALL_INTRINSIC_2": (2, 1),
    "GET_ITER": (1, 1),
    "GET_LEN": (1, 2),
    "MATCH_SEQUENCE": (1, 2),
    "MATCH_MAPPING": (1, 2),
    "MATCH_KEYS": (2, 3),
    "MATCH_CLASS": (3, 1),
    "IMPORT_NAME": (2, 1),
    "LOAD_NAME": (0, 1),
    "STORE_GLOBAL": (1, 0),
    "DELETE_GLOBAL": (0, 0),
    "LOAD_DEREF": (0, 1),
    "LOAD_BUILD_CLASS": (0, 1),
    "SET_ADD": (1, 0),
    "LIST_APPEND": (1, 0),
    "MAP_ADD": (2, 0),
    "LIST_EXTEND": (1, 0),
    "SET_UPDATE": (1, 0),
    "DICT_UPDATE": (1, 0),
    "DICT_MERGE": (1, 0),
    "CHECK_EXC_MATCH": (1, 1),
    "CHECK_EG_MATCH": (2, 2),
    "BEFORE_WITH": (1, 2),
    "GET_YIELD_FROM_ITER": (1, 1),
}
"""How many operands an instruction takes from the stack, and how many results it leaves."""


def stack_effect(opname: str, argument: int) -> tuple[int, int] | None:
    """Operands and results of an instruction; None if a break cannot be resumed after it."""
    if opname == "CALL":
        return argument + 2, 1
    if opname == "CALL_KW":
        return argument + 3, 1
    if opname == "LOAD_SUPER_ATTR":
        return None if argument & 1 else (3, 1)
    if opname == "CALL_FUNCTION_EX":
        return 3 + (argument & 1), 1
    if opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and argument & 1:
        return None  # leaves a NULL or not, as it turns out
    if opname == "LOAD_GLOBAL":
        return None if argument & 1 else (0, 1)
    if opname == "FORMAT_VALUE":
        return 1 + bool(argument & 4), 1
    if opname == "UNPACK_SEQUENCE":
        return 1, argument
    if opname == "UNPACK_EX":
        return 1, (argument & 0xFF) + (argument >> 8) + 1
    if opname in ("BUILD_SET", "BUILD_LIST", "BUILD_TUPLE", "BUILD_STRING", "BUILD_SLICE"):
        return argument, 1
    if opname == "BUILD_MAP":
        return 2 * argument, 1
    return _EFFECTS.get(opname)


_CONDITIONS = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
_KEPT = ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
LOOP_END = {(3, 11): 0, (3, 12): 1}.get(sys.version_info[:2], 2)
"""How many instructions an ended loop skips: END_FOR in 3.12, and POP_TOP from 3.13."""


@dataclass(frozen=True, slots=True)
class Exits:
    """How an instruction that breaks is left, where it does not raise."""

    operands: int
    results: tuple[int, ...]
    """How many values each exit leaves; the second one is a jump."""


def exits(instruction: Instruction) -> Exits | None:
    """How an instruction is left; None if nothing can be resumed after it."""
    opname = instruction.opname
    plain = opname.replace("_FORWARD", "").replace("_BACKWARD", "")
    if plain in _CONDITIONS:
        return Exits(1, (0, 0))
    if opname in _KEPT:
        return Exits(1, (0, 1))
    if opname == "FOR_ITER":
        return Exits(1, (2, 0))
    if opname == "RAISE_VARARGS":
        return Exits(instruction.arg or 0, ())
    effect = stack_effect(opname, instruction.arg or 0)
    return None if effect is None else Exits(effect[0], (effect[1],))
