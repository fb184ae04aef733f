"""Sums of many terms, taken in blocks.

A lane that adds up thousands of floats loses bits with each: of 20,000 that are alike, up to three
digits of seven. So after some terms what the lanes hold is put aside, in double precision, and they
begin anew. A loop around the others runs over blocks:

    for (i0 = 0; i0 < n; i0 += 32) {
      for (i = i0; i < min(i0 + 32, n); ++i) acc += p[i];
      before += acc; acc = 0;
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.pieces import indented
from plait_ir_lowering import ReductionKind, Var
from plait_scheduler import Reduce

STEPS = 32
"""How many terms a lane adds up before it begins anew, about."""
_MANY = 1 << 20


def terms(var: Var) -> int:
    """How many places a variable has: many if that is not known yet."""
    return var.extent.as_int() if var.extent.is_constant else _MANY


def is_long(reduce: Reduce, inner: Sequence[Var], lanes: int = 1) -> bool:
    """Whether a sum of floats has so many terms that `lanes` lanes add it up in several blocks."""
    is_sum = reduce.kind is ReductionKind.SUM and reduce.value.dtype.is_float
    return is_sum and math.prod(map(terms, inner)) > 4 * STEPS * lanes


def nested(
    variables: Sequence[Var],
    body: Sequence[str],
    anew: Sequence[str] = (),
    *,
    lanes: int = 1,
    gathered: int = 1,
    declared: bool = False,
) -> list[str]:
    """Loops around a body; in one of them lanes begin `anew` after a block.

    Each run of the body gathers so many terms in `lanes` lanes. The variables may be `declared`
    already.
    """
    lines = list(body)
    for var in reversed(variables):
        whole = gathered * terms(var)
        if anew and whole > STEPS * lanes:
            lines = _blocked(var, lines, anew, max(STEPS * lanes // gathered, 1), declared)
            anew = ()
        else:
            kind = "" if declared else "int64_t "
            head = f"for ({kind}{var.name} = 0; {var.name} < {kernel_index(var.extent)}; "
            lines = [f"{head}++{var.name}) {{", *indented(lines), "}"]
        gathered = whole
    return lines


def _blocked(
    var: Var, body: Sequence[str], anew: Sequence[str], block: int, declared: bool
) -> list[str]:
    name, count = var.name, kernel_index(var.extent)
    kind = "" if declared else "int64_t "
    return [
        f"for (int64_t {name}_begin = 0; {name}_begin < {count}; {name}_begin += {block}) {{",
        *indented([below(f"{name}_end", f"{name}_begin", count, block)]),
        f"  for ({kind}{name} = {name}_begin; {name} < {name}_end; ++{name}) {{",
        *indented(body, 2),
        "  }",
        *indented(anew),
        "}",
    ]


def below(name: str, begin: str, count: str, block: int) -> str:
    """The end of a block."""
    return f"const int64_t {name} = {count} - {begin} < {block} ? {count} : {begin} + {block};"
