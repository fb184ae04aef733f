"""Code objects by their content, and code whose meaning is not the same in each process."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

from plait_bytecode_tracer.stored.errors import NotStoredError
from plait_bytecode_tracer.stored.literals import literal
from plait_utils import stable_hash

_SETS = frozenset(dis.opmap[name] for name in ("BUILD_SET", "SET_ADD", "SET_UPDATE"))
_OF_ADDRESSES = frozenset({"set", "frozenset", "hash", "id"})
"""Names under which code finds what differs from process to process: hashes and addresses."""
_VIEWS = frozenset({"keys", "items", "viewkeys"})
"""Methods whose results give sets, with the operators of sets."""
_OF_SETS = frozenset(
    number for number, (name, _) in enumerate(dis._nb_ops) if name.endswith(("AND", "OR", "XOR"))
) | frozenset(n for n, (name, _) in enumerate(dis._nb_ops) if name.endswith("SUBTRACT"))
_BINARY = dis.opmap["BINARY_OP"]
_LOAD_CONST = dis.opmap["LOAD_CONST"]
_CONTAINS = dis.opmap["CONTAINS_OP"]
_WIDER = dis.opmap["EXTENDED_ARG"]


def code_hash(code: types.CodeType) -> str:
    """A hash of all that a code object does; of where it stands, its lines alone."""
    return stable_hash(
        *(code.co_name, code.co_qualname, code.co_code, code.co_exceptiontable),
        *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        *(code.co_firstlineno, code.co_linetable),
        [_constant(value) for value in code.co_consts],
    )


def _constant(value: object) -> str:
    if isinstance(value, types.CodeType):
        return code_hash(value)
    if isinstance(value, frozenset):
        return repr(("frozenset", sorted(map(_constant, value))))
    if isinstance(value, tuple):
        return repr(("tuple", [_constant(item) for item in value]))
    try:
        return repr((type(value).__name__, literal(value)))
    except NotStoredError:
        return repr((type(value).__name__, repr(value)))  # NaN, which codes hold as any other


def require_same_everywhere(code: types.CodeType) -> None:
    """Refuse code that may see in which order sets lie, or what hashes or addresses are.

    These differ from process to process, and nothing guards them. Membership is no order.
    Raises NotStoredError.
    """
    for each in _nested(code):
        operators = each.co_code[::2]
        if not _SETS.isdisjoint(operators):
            raise NotStoredError(f"{each.co_qualname} makes a set")
        found = _OF_ADDRESSES.intersection(each.co_names)
        if found:
            raise NotStoredError(f"{each.co_qualname} names {min(found)!r}")
        if not _VIEWS.isdisjoint(each.co_names) and _has_set_operator(each.co_code):
            raise NotStoredError(f"{each.co_qualname} may make a set of views of dicts")
        if any(map(_holds_set, each.co_consts)) and not _asks_for_members(each):
            raise NotStoredError(f"{each.co_qualname} may see the order of a set")


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _nested(value)


def _has_set_operator(instructions: bytes) -> bool:
    pairs = zip(instructions[::2], instructions[1::2], strict=True)
    return any(operator == _BINARY and number in _OF_SETS for operator, number in pairs)


def _holds_set(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_set, value))
    return isinstance(value, frozenset)


def _asks_for_members(code: types.CodeType) -> bool:
    """Whether all sets among the constants of a code are only asked what they contain."""
    if any(isinstance(value, tuple) and _holds_set(value) for value in code.co_consts):
        return False
    instructions = code.co_code
    if _WIDER in instructions[::2] and len(code.co_consts) > 255:
        return False
    for place in range(0, len(instructions) - 2, 2):
        if instructions[place] != _LOAD_CONST:
            continue
        if _holds_set(code.co_consts[instructions[place + 1]]):
            if instructions[place + 2] != _CONTAINS:
                return False
    return True
