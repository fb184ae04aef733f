"""Scans in C++: what is carried along a row, and how a point's values join it."""

from __future__ import annotations

from collections.abc import Sequence

from plait_cpp_codegen.kernels.types import REGISTER
from plait_cpp_codegen.kernels.values import ValueEmitter
from plait_ir_lowering import carried, components
from plait_scheduler import Accumulate

_UNROLLED = 16


def states(scan: Accumulate, lanes: str) -> list[str]:
    """What a scan carries from one point of a row to the next, before the first one."""
    return [
        f"vec<{REGISTER[local.dtype]}, {lanes}> state_{local.name}{{}};" for local in scan.locals
    ]


def across_rows(scan: Accumulate, values: Sequence[str], place: str) -> list[str]:
    """A scan whose lanes are rows of their own; `place` is the position within all of them."""
    lines = [
        f"const vec<{REGISTER[local.dtype]}, L> b_{local.name} = {value};"
        for local, value in zip(scan.locals, values, strict=True)
    ]
    lines += _advanced(scan, f"{place} == 0")
    return lines + [
        f"const vec<{REGISTER[local.dtype]}, L> {local.name} = state_{local.name};"
        for local in scan.locals
    ]


def along_row(scan: Accumulate, values: Sequence[str], place: str) -> list[str]:
    """A scan whose lanes are neighbours of one row, of which the first is at `place`.

    The lanes take turns; what computes their values, and what uses the results, are vectors.
    """
    own, body = [], ["constexpr int L = 1;"]
    for local, value in zip(scan.locals, values, strict=True):
        kind = REGISTER[local.dtype]
        own.append(f"vec<{kind}, L> {local.name};")
        body.append(f"const vec<{kind}, 1> b_{local.name} = {{{value}[lane]}};")
    body += _advanced(scan, f"lane == 0 && {place} == 0")
    body += [f"{local.name}[lane] = state_{local.name}[0];" for local in scan.locals]
    count = f"count_{scan.names[0]}"
    return [
        *own,
        f"constexpr int {count} = L;",
        f'_Pragma("GCC unroll {_UNROLLED}")',
        f"for (int lane = 0; lane < {count}; ++lane) {{",
        *(f"  {line}" for line in body),
        "}",
    ]


def _advanced(scan: Accumulate, begins: str) -> list[str]:
    """The state after a point whose values are named; the first point's are the state."""
    dtypes = [part.dtype for part in components(scan.value)]
    before, point = carried("a", dtypes), carried("b", dtypes)
    names = {a.name: f"state_{name}" for a, name in zip(before, scan.names, strict=True)}
    names |= {b.name: f"b_{name}" for b, name in zip(point, scan.names, strict=True)}
    emitter = ValueEmitter({}, None, names, prefix=f"joined_{scan.names[0]}_")
    found = [emitter.emit(part) for part in components(scan.combine)]
    lines = [f"if ({begins}) {{"]
    lines += [f"  state_{name} = b_{name};" for name in scan.names]
    lines += ["} else {", *(f"  {line}" for line in emitter.lines)]
    kinds = [REGISTER[dtype] for dtype in dtypes]
    lines += [  # all of them before any changes
        f"  const vec<{kind}, L> next_{name} = {text};"
        for kind, name, text in zip(kinds, scan.names, found, strict=True)
    ]
    lines += [f"  state_{name} = next_{name};" for name in scan.names]
    return [*lines, "}"]
