"""Code whose results follow from hashes or addresses, which are others in each process.

The order of a set is decided by the hashes of its elements. While a process runs it stays, so
that a trace may read it, and nothing guards it. Whoever stores the trace reads the bytecode
instead: sets that are only asked whether they contain something show no order. Code that makes or
reads sets in other ways, or asks for hashes and addresses, is not stored.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from plait_bytecode_tracer.stored.errors import NotStoredError

OF_PROCESSES = {each.__name__: each for each in (set, frozenset, hash, id)}
"""Builtins that give hashes, addresses, or an order that follows from these."""
_HARMLESS = frozenset({("torch.nn.modules.module", "Module.__init__")})
"""Functions that make empty sets, which only functions of their own module read."""
_THEIR_SETS = frozenset({"_non_persistent_buffers_set"})
_METHODS = frozenset({"add", "discard", "remove", "isdisjoint", "issubset", "issuperset"})
_SETS = frozenset(dis.opmap[name] for name in ("BUILD_SET", "SET_ADD", "SET_UPDATE"))
_VIEWS = frozenset({"keys", "items"})
"""Methods whose results give sets, with the operators of sets."""
_OF_SETS = frozenset(
    number
    for number, (name, _) in enumerate(dis._nb_ops)  # type: ignore[attr-defined]  # not in stubs
    if name.endswith(("AND", "OR", "XOR", "SUBTRACT"))
)
_KNOWN = sys.version_info[:2] == (3, 11)
"""Whether the instructions are those that are read here; others are refused as a whole."""

_Step: TypeAlias = tuple[str, int]
"""An instruction's name and argument."""


def require_no_order(code: types.CodeType, module: str, sets: Collection[str]) -> None:
    """Refuse code that may see in which order sets lie, or what hashes or addresses are.

    Args:
        code: what was traced.
        module: the name of the module that it is of.
        sets: names of global variables that are sets.

    Raises NotStoredError.
    """
    if (module, code.co_qualname) in _HARMLESS:
        return
    for each in _nested(code):
        _require(each, frozenset(sets), is_own=module.startswith("torch.nn.modules"))


def _require(code: types.CodeType, sets: frozenset[str], *, is_own: bool) -> None:
    names = frozenset(code.co_names)
    if "__hash__" in names or (not is_own and names & _THEIR_SETS):
        raise NotStoredError(f"{code.co_qualname} asks for hashes or sets")
    may_make = not _SETS.isdisjoint(code.co_code[::2]) or any(map(_holds_set, code.co_consts))
    asks = names & (sets | OF_PROCESSES.keys())
    makes_sets = any(_is_set_comprehension(value) for value in code.co_consts)
    if not (may_make or asks or names & _VIEWS or makes_sets):
        return
    if not _KNOWN:
        raise NotStoredError(f"{code.co_qualname} may see the order of a set")
    steps = list(_steps(code))
    views = any(_gives_view(code, steps, place) for place in range(len(steps)))
    for place, step in enumerate(steps):
        if not _is_harmless(code, steps, place, step, sets, views=views):
            raise NotStoredError(f"{code.co_qualname} may see the order of a set ({step[0]})")


def _is_harmless(
    code: types.CodeType,
    steps: Sequence[_Step],
    place: int,
    step: _Step,
    sets: frozenset[str],
    *,
    views: bool,
) -> bool:
    """Whether an instruction gives nothing that has an order of its own, but to ask for members."""
    name, number = step
    match name:
        case "LOAD_GLOBAL":
            loaded = code.co_names[number >> 1]
            return loaded not in OF_PROCESSES and (
                loaded not in sets
                or _follows(steps, place, "CONTAINS_OP")
                or _is_for(code, steps, place + 1)
            )
        case "LOAD_NAME" | "LOAD_ATTR" | "LOAD_METHOD" | "IMPORT_FROM":
            loaded = code.co_names[number]
            return loaded not in sets and (name != "LOAD_NAME" or loaded not in OF_PROCESSES)
        case "BINARY_OP":
            return not views or number not in _OF_SETS
        case "BUILD_SET":
            if code.co_name == "<setcomp>":
                return True  # who calls it is looked at
            if _follows(steps, place, "LOAD_CONST") and _follows(steps, place + 1, "SET_UPDATE"):
                place += 2
            return _only_asked(code, steps, place)
        case "SET_ADD":
            return code.co_name == "<setcomp>"
        case "SET_UPDATE":
            return steps[place - 2][0] == "BUILD_SET" and steps[place - 1][0] == "LOAD_CONST"
        case "LOAD_CONST":
            return _is_harmless_constant(code, steps, place, code.co_consts[number])
    return True


def _is_harmless_constant(
    code: types.CodeType, steps: Sequence[_Step], place: int, value: object
) -> bool:
    if _holds_set(value):
        asked = _follows(steps, place, "CONTAINS_OP") and isinstance(value, frozenset)
        return asked or _follows(steps, place, "SET_UPDATE")
    if not _is_set_comprehension(value):
        return True
    while place < len(steps) - 3:
        place += 1
        if steps[place][0] == "GET_ITER":
            called = [name for name, _ in steps[place + 1 : place + 3]]
            return called == ["PRECALL", "CALL"] and _only_asked(code, steps, place + 2)
        if steps[place][0] == "LOAD_CONST" and _is_code(code.co_consts[steps[place][1]]):
            return False
    return False


def _only_asked(code: types.CodeType, steps: Sequence[_Step], place: int) -> bool:
    """Whether what an instruction gives is only asked whether it contains something."""
    if place + 1 >= len(steps):
        return False
    name, number = steps[place + 1]
    if name == "CONTAINS_OP":
        return True
    if name != "STORE_FAST" or "locals" in code.co_names:
        return False
    return all(
        _follows(steps, at, "CONTAINS_OP")
        for at, step in enumerate(steps)
        if step == ("LOAD_FAST", number)
    )


def _gives_view(code: types.CodeType, steps: Sequence[_Step], place: int) -> bool:
    """Whether an instruction reads a method that gives a view which is kept, or is an operand."""
    name, number = steps[place]
    if name not in ("LOAD_METHOD", "LOAD_ATTR") or code.co_names[number] not in _VIEWS:
        return False
    return [each for each, _ in steps[place + 1 : place + 4]] != ["PRECALL", "CALL", "GET_ITER"]


def _is_for(code: types.CodeType, steps: Sequence[_Step], place: int) -> bool:
    """Whether an instruction reads a method of sets that shows no order."""
    name, number = steps[place] if place < len(steps) else ("", 0)
    return name in ("LOAD_METHOD", "LOAD_ATTR") and code.co_names[number] in _METHODS


def _follows(steps: Sequence[_Step], place: int, name: str) -> bool:
    return place + 1 < len(steps) and steps[place + 1][0] == name


def _steps(code: types.CodeType) -> Iterator[_Step]:
    """The instructions of a code object, without the caches between them."""
    instructions, wide = code.co_code, 0
    for operator, number in zip(instructions[::2], instructions[1::2], strict=True):
        name = dis.opname[operator]
        if name == "EXTENDED_ARG":
            wide = (wide | number) << 8
        elif name != "CACHE":
            yield name, wide | number
            wide = 0


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _nested(value)


def _is_code(value: object) -> bool:
    return isinstance(value, types.CodeType)


def _is_set_comprehension(value: object) -> bool:
    return isinstance(value, types.CodeType) and value.co_name == "<setcomp>"


def _holds_set(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_set, value))
    return isinstance(value, frozenset)
