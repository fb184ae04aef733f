"""Links of a chain in one launch: one program calls a function for each, and waits between them.

What threads have written to memory before they meet at a barrier, all threads of their program find
there behind it. So a chain has one program, which takes as much of each link at once as it can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from plait_ir_lowering import as_index
from plait_scheduler import ChainedKernel
from plait_triton_codegen.kernels.launchers import function_head, launcher_of, signature_of
from plait_triton_codegen.kernels.source import TritonKernelSource
from plait_triton_codegen.kernels.space import FlatKernel, fresh
from plait_triton_codegen.kernels.stores import TOGETHER
from plait_triton_codegen.kernels.tiles import Tile, power_of_two, warps_of

_ELEMENTS = 4096
"""Points that a link computes at a time, some of each thread."""
_PER_THREAD = 16
_WARPS = 4, 8
"""Fewest and most of a chain."""


def wide_tile(flat: FlatKernel, tile: Tile) -> Tile:
    """A tile of a link's, which covers all of its points where these are few. No loads are on their
    way while others are used: blocks are larger than those of the rule, whose stages fit in shared
    memory."""
    xblock, rblock = tile.xblock, tile.rblock
    most = power_of_two(flat.xnumel or 1)
    while xblock < most and xblock * rblock < _ELEMENTS:
        xblock *= 2
    if flat.tiled:
        most = power_of_two(flat.rnumel or 1)
        while rblock < most and xblock * rblock < _ELEMENTS:
            rblock *= 2
    warps = warps_of(xblock * rblock, _PER_THREAD, max(_WARPS))
    return replace(tile, xblock=xblock, rblock=rblock, num_warps=warps, turns=1, stages=0)


def of_one_program(tiles: Sequence[Tile]) -> list[Tile]:
    """The tiles of a chain's kernels, with the warps that all of them have."""
    warps = max([min(_WARPS), *(tile.num_warps for tile in tiles)])
    return [replace(tile, num_warps=min(warps, max(_WARPS))) for tile in tiles]


def chained_source(
    kernel: ChainedKernel, links: Sequence[TritonKernelSource], overlaps: bool
) -> TritonKernelSource:
    """The source of a chain, with the functions of its kernels.

    Args:
        links: each computes one block: the first argument of its function is which.
        overlaps: whether it is launched before the one before it is done.
    """
    signature = signature_of(kernel, 0)
    tile = Tile(1, 1, links[0].tile.num_warps, True)
    described = f"{len(kernel.links)} links"
    lines = function_head(kernel, signature, [], described, overlaps=overlaps)
    lines += [f"    {line}" for line in _calls(kernel, links)]
    text = "\n".join([*(f"{link.text}\n" for link in links), *lines]) + "\n"
    blocks = ((as_index(1), 1),)
    launcher = launcher_of(kernel, blocks, tile, {}, 0)
    return TritonKernelSource(
        *(kernel.name, text, launcher, signature, tile, blocks), overlaps=overlaps
    )


def _calls(kernel: ChainedKernel, links: Sequence[TritonKernelSource]) -> Iterator[str]:
    """The body of a chain."""
    taken = {param.name for param in kernel.params} | {"tl", "triton", "device"}
    program, block = fresh("program", taken), fresh("block", taken)
    yield f"{program} = tl.program_id(0)"
    for number, link in enumerate(links[place] for place in kernel.links):
        if number:
            yield TOGETHER
        names = [f"{name}_{number}" for name, _ in link.signature]
        given = ", ".join([*names, *map(str, link.constants.values())])
        count = math.prod(-(-extent.as_int() // size) for extent, size in link.blocks)
        if count == 1:
            yield f"{link.name}({program}, {given})"
            continue
        yield f"for {block} in range({count}):"
        yield f"    {link.name}({program} + {block}, {given})"
