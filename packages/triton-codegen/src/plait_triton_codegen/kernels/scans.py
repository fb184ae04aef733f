"""Scans in Triton: a function that joins two states, and the call that scans a block of rows.

Rows too long for registers are scanned block by block, and what a block ends with joins the next:

    for start in range(0, 100000, RBLOCK):
        t1 = tl.associative_scan(..., 1, k_join_t1)
        t1 = tl.where(start > 0, k_join_t1(t1_last, t1), t1)
        t1_last = device.row_last(t1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait_ir_lowering import DType, Value, carried, components, post_order
from plait_scheduler import Accumulate
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.operations import TRITON_DTYPES
from plait_triton_codegen.kernels.space import FlatKernel
from plait_triton_codegen.kernels.values import Term, ValueWriter


def joining_name(flat: FlatKernel, scan: Accumulate) -> str:
    """The function that joins two states of a scan; modules hold those of several kernels."""
    return f"{flat.kernel.name}_join_{scan.names[0]}"


def joining_function(flat: FlatKernel, scan: Accumulate) -> str:
    """Its source: of the state before a point and the point's values, the state at the point."""
    dtypes = [part.dtype for part in components(scan.value)]
    if DType.bool_ in dtypes:
        raise UnsupportedKernelError("Triton does not scan single bits")
    both = (*carried("a", dtypes), *carried("b", dtypes))
    names = [local.name for local in both]
    writer = ValueWriter(flat, True, False, {}, {"tl", "triton", "device", *names})
    writer.locals = {name: Term(name) for name in names}
    writer.uses = _uses(components(scan.combine))
    found = [writer.write(part).text for part in components(scan.combine)]
    head = ["@triton.jit", f"def {joining_name(flat, scan)}({', '.join(names)}):"]
    lines = [*writer.lines, f"return {', '.join(found)}"]
    return "\n".join([*head, *(f"    {line}" for line in lines)]) + "\n"


def _uses(roots: Sequence[Value]) -> dict[Value, int]:
    uses: dict[Value, int] = {}
    for value in post_order(roots):
        for operand in value.operands:
            uses[operand] = uses.get(operand, 0) + 1
    return uses


def scanned_rows(
    flat: FlatKernel, scan: Accumulate, writer: ValueWriter, block: Callable[[Term], str]
) -> str:
    """The line that scans whole rows; what lies behind a row's end changes nothing before it."""
    parts = components(scan.value)
    texts = [block(_typed(writer.write(part), part.dtype)) for part in parts]
    given = texts[0] if len(parts) == 1 else f"({', '.join(texts)})"
    call = f"tl.associative_scan({given}, 1, {joining_name(flat, scan)})"
    return f"{', '.join(scan.names)} = {call}"


def first_states(scan: Accumulate) -> list[str]:
    """Lines before a loop that scans blocks: the states that no block has ended with yet."""
    return [
        f"{name}_last = tl.full([XBLOCK, 1], 0, {TRITON_DTYPES[part.dtype]})"
        for name, part in zip(scan.names, components(scan.value), strict=True)
    ]


def joined_states(flat: FlatKernel, scan: Accumulate) -> list[str]:
    """Lines in such a loop, after the one that scans a block: the states of the whole row."""
    last = [f"{name}_last" for name in scan.names]
    joined = [f"{name}_joined" for name in scan.names]
    call = f"{joining_name(flat, scan)}({', '.join((*last, *scan.names))})"
    lines = [f"{', '.join(joined)} = {call}"]
    for name, whole in zip(scan.names, joined, strict=True):
        lines.append(f"{name} = tl.where(start > 0, {whole}, {name})")
    return [*lines, *(f"{name}_last = device.row_last({name})" for name in scan.names)]


def names_of_states(scan: Accumulate) -> set[str]:
    """What these lines name."""
    return {f"{name}_{suffix}" for name in scan.names for suffix in ("last", "joined")}


def _typed(term: Term, dtype: DType) -> Term:
    """A block whose element type does not depend on how Triton reads a number."""
    return Term(f"{term.grouped()}.to({TRITON_DTYPES[dtype]})", term.axes)
