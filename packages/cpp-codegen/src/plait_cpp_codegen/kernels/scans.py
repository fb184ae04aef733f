"""Scans in C++: what is carried along a row, and how a point's values join it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait_cpp_codegen.kernels.types import REGISTER
from plait_cpp_codegen.kernels.values import ValueEmitter
from plait_ir_lowering import DType, Local, Op, Value, carried, components
from plait_scheduler import Accumulate


def states_across(scan: Accumulate) -> list[str]:
    """What a scan carries, before the first point, where each lane is a row of its own."""
    return [f"vec<{REGISTER[local.dtype]}, L> state_{local.name}{{}};" for local in scan.locals]


def states_along(scan: Accumulate) -> list[str]:
    """The same along one row: plain numbers, as GCC keeps vectors of one lane in memory."""
    return [f"{REGISTER[local.dtype]} state_{local.name} = 0;" for local in scan.locals]


def across_rows(scan: Accumulate, values: Sequence[str], place: str) -> list[str]:
    """A scan whose lanes are rows of their own; `place` is the position within all of them."""
    joined, found = _joined(scan, [f"state_{name}" for name in scan.names], values)
    lines = [f"if ({place} == 0) {{"]
    lines += [f"  state_{n} = {value};" for n, value in zip(scan.names, values, strict=True)]
    lines += ["} else {", *(f"  {line}" for line in joined)]
    for local, text in zip(scan.locals, found, strict=True):  # all of them before any changes
        lines.append(f"  const vec<{REGISTER[local.dtype]}, L> next_{local.name} = {text};")
    lines += [*(f"  state_{name} = next_{name};" for name in scan.names), "}"]
    for local in scan.locals:
        lines.append(f"const vec<{REGISTER[local.dtype]}, L> {local.name} = state_{local.name};")
    return lines


def along_row(scan: Accumulate, values: Sequence[str], place: str) -> list[str]:
    """A scan whose lanes are neighbours of one row, of which the first is at `place`.

    The lanes take turns; what computes their values, and what uses the results, are vectors.
    """
    kinds = [REGISTER[local.dtype] for local in scan.locals]
    named = list(zip(scan.names, kinds, strict=True))
    count = f"count_{scan.names[0]}"
    lines = [f"constexpr int {count} = L;"]
    for (name, kind), value in zip(named, values, strict=True):
        lines.append(f"const vec<{kind}, L> row_of_{name} = {value};")
        copy = f"memcpy(row_{name}, &row_of_{name}, sizeof row_of_{name});"
        lines.append(f"alignas(64) {kind} row_{name}[L]; {copy}")
    lines += [
        f"int begin_{count} = 0;",
        f"if ({place} == 0) {{",
        *(f"  state_{name} = row_{name}[0];" for name in scan.names),
        f"  begin_{count} = 1;",
        "}",
        f"for (int lane = begin_{count}; lane < {count}; ++lane) {{",
        *(f"  {line}" for line in _turn(scan)),
        *(f"  row_{name}[lane] = state_{name};" for name in scan.names),
        "}",
    ]
    for name, kind in named:
        lines.append(f"vec<{kind}, L> {name}; memcpy(&{name}, row_{name}, sizeof {name});")
    return lines


def _turn(scan: Accumulate) -> list[str]:
    """One lane's turn: its values join the state."""
    dtypes = [part.dtype for part in components(scan.value)]
    names = {a.name: f"state_{n}" for a, n in zip(carried("a", dtypes), scan.names, strict=True)}
    for b, name in zip(carried("b", dtypes), scan.names, strict=True):
        names[b.name] = f"row_{name}[lane]"
    numbers = [_number(part, names) for part in components(scan.combine)]
    kinds = [REGISTER[dtype] for dtype in dtypes]
    named = list(zip(scan.names, kinds, strict=True))
    lines: list[str] = []
    if None in numbers:
        before, point = ([f"{letter}_{name}" for name in scan.names] for letter in "ab")
        joined, found = _joined(scan, before, point)
        lines.append("constexpr int L = 1;")
        lines += [f"const vec<{kind}, 1> a_{name} = {{state_{name}}};" for name, kind in named]
        lines += [f"const vec<{kind}, 1> b_{name} = {{row_{name}[lane]}};" for name, kind in named]
        lines += joined
        numbers = [f"({text})[0]" for text in found]
    for (name, kind), text in zip(named, numbers, strict=True):  # all before any changes
        lines.append(f"const {kind} next_{name} = {text};")
    return [*lines, *(f"state_{name} = next_{name};" for name in scan.names)]


_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_CONNECTIVES = {"logical_and": "&&", "logical_or": "||"}


def _number(value: Value, names: Mapping[str, str]) -> str | None:
    """A value of plain numbers in C++, where that is short; GCC is slow with vectors of one lane.

    Integers overflow in vectors only, where that is defined.
    """
    match value:
        case Local(name, dtype) if dtype is not DType.bool_:
            return names[name]
        case Op("where", (mask, chosen, other), _):
            parts = _condition(mask, names), _number(chosen, names), _number(other, names)
            return None if None in parts else "({} ? {} : {})".format(*parts)
        case Op(name, (left, right), dtype) if name in _ARITHMETIC and dtype.is_float:
            sides = _number(left, names), _number(right, names)
            return None if None in sides else f"({sides[0]} {_ARITHMETIC[name]} {sides[1]})"
    return None


def _condition(value: Value, names: Mapping[str, str]) -> str | None:
    """The same of a truth value."""
    match value:
        case Op("isnan", (inner,), _):
            text = _number(inner, names)
            return None if text is None else f"({text} != {text})"
        case Op(name, (left, right), _) if name in _COMPARISONS:
            sides = _number(left, names), _number(right, names)
            return None if None in sides else f"({sides[0]} {_COMPARISONS[name]} {sides[1]})"
        case Op(name, (left, right), _) if name in _CONNECTIVES:
            sides = _condition(left, names), _condition(right, names)
            return None if None in sides else f"({sides[0]} {_CONNECTIVES[name]} {sides[1]})"
    return None


def _joined(
    scan: Accumulate, before: Sequence[str], point: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Lines, and the names of the next state: of the one before and what a point brings."""
    dtypes = [part.dtype for part in components(scan.value)]
    both = (*carried("a", dtypes), *carried("b", dtypes))
    names = {local.name: text for local, text in zip(both, (*before, *point), strict=True)}
    emitter = ValueEmitter({}, None, names, prefix=f"joined_{scan.names[0]}_")
    found = [emitter.emit(part) for part in components(scan.combine)]
    return emitter.lines, found
