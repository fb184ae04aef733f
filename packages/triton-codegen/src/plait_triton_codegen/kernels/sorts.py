"""Sorts in Triton: of rows that a block holds as wholes.

    t1 = device.sorted_rows(tl.where(rmask, t0, 9223372036854775807))

What lies behind the end of a row is largest, and so stays there. Where few of a row's elements are
wanted, less is sorted, and a block has these again and again:

    t1 = device.least_of_rows(t0, 8)

Keys of two words are sorted as two blocks:

    t2, t3 = device.sorted_pairs(t0, t1)
"""

from __future__ import annotations

from collections.abc import Callable

from plait_ir_lowering import DType, components
from plait_scheduler import Sort
from plait_triton_codegen.kernels.operations import TRITON_DTYPES
from plait_triton_codegen.kernels.tiles import power_of_two
from plait_triton_codegen.kernels.values import Term, ValueWriter

_LARGEST = {DType.i32: 2**31 - 1, DType.i64: 2**63 - 1}


def sorted_line(sort: Sort, writer: ValueWriter, block: Callable[[Term], str], rblock: int) -> str:
    """The line that sorts rows, whole in blocks of `rblock`."""
    blocks: list[str] = []
    for word in components(sort.value):
        term = writer.write(word)
        text = block(Term(f"{term.grouped()}.to({TRITON_DTYPES[word.dtype]})", term.axes))
        if "r" in writer.masks:
            text = f"tl.where({writer.masks['r']}, {text}, {_LARGEST[word.dtype]})"
        blocks.append(text)
    names, given = ", ".join(sort.names), ", ".join(blocks)
    whole, least = _FUNCTIONS[len(blocks)]
    count = rblock if sort.first is None else power_of_two(sort.first)
    if count >= rblock:
        return f"{names} = device.{whole}({given})"
    return f"{names} = device.{least}({given}, {count})"


_FUNCTIONS = {1: ("sorted_rows", "least_of_rows"), 2: ("sorted_pairs", "least_of_pairs")}
"""What sorts whole rows, and what finds the least of them, by the words of a key."""
