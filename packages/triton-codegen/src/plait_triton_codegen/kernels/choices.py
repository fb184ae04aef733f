"""The tiles of a kernel to choose from by timing: the rule's, and what gives other code."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from plait_scheduler import AnyKernel, ChainedKernel, CombinedKernel, Kernel
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.attention import attention_of
from plait_triton_codegen.kernels.chips import Chip
from plait_triton_codegen.kernels.descriptors import (
    LEAST_CAPABILITY,
    aligned_names,
    are_plain,
    result_of,
)
from plait_triton_codegen.kernels.neighbours import (
    MOST_NEIGHBOURS,
    flat_neighbours,
    pair_neighbours,
)
from plait_triton_codegen.kernels.product_blocks import product_tiles
from plait_triton_codegen.kernels.products import product_of
from plait_triton_codegen.kernels.render import render_kernel
from plait_triton_codegen.kernels.scatters import in_any_order, is_scatter
from plait_triton_codegen.kernels.source import TritonKernelSource
from plait_triton_codegen.kernels.space import flatten
from plait_triton_codegen.kernels.tiles import Tile
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.versions import offers_roles


def tile_choices(
    kernel: AnyKernel,
    options: TritonOptions,
    *,
    chip: Chip | None = None,
    aligned: Collection[int] | None = None,
) -> Mapping[Tile, TritonKernelSource]:
    """The tiles to choose from, the rule's first, and what the kernel is in each: of a product of
    matrices all that fit, of other kernels at most `MOST_NEIGHBOURS` beside the rule's.

    Args:
        aligned: positions of the parameters that begin at multiples of 16 bytes; None for all.

    Raises UnsupportedKernelError for a kernel that Triton cannot express.
    """
    chip = chip or Chip()
    rule = render_kernel(kernel, options, chip=chip, aligned=aligned)
    product = product_of(kernel) if isinstance(kernel, Kernel) else None
    if isinstance(kernel, Kernel) and product is not None:
        names = aligned_names(kernel.params, aligned)
        described = chip.capability >= LEAST_CAPABILITY and are_plain(product, kernel.params, names)
        tiles = product_tiles(
            product,
            tf32=options.tf32,
            chip=chip,
            described=described,
            described_result=result_of(product, kernel.params, names) is not None,
            roles=offers_roles(chip.capability),
        )
        most = len(tiles)
    else:
        tiles, most = tuple(_neighbours(kernel, rule.tile, options)), MOST_NEIGHBOURS
    found = {rule.tile: rule}
    for tile, source in islice(_rendered(kernel, rule, tiles, options, chip), most):
        found[tile] = source
    return found


def _neighbours(kernel: AnyKernel, rule: Tile, options: TritonOptions) -> Iterator[Tile]:
    if isinstance(kernel, ChainedKernel):
        return  # its tiles are of one program
    if isinstance(kernel, CombinedKernel):
        yield from flat_neighbours(flatten(kernel.body), rule, options)
    elif attention_of(kernel) is not None:
        yield from pair_neighbours(rule)
    else:
        plain = in_any_order(kernel) if is_scatter(kernel) else kernel
        yield from flat_neighbours(flatten(plain), rule, options)


def _rendered(
    kernel: AnyKernel,
    rule: TritonKernelSource,
    tiles: Collection[Tile],
    options: TritonOptions,
    chip: Chip,
) -> Iterator[tuple[Tile, TritonKernelSource]]:
    """The kernel in those tiles that it can be computed in, each code once."""
    seen = {_code(rule)}
    for tile in tiles:
        try:
            source = render_kernel(kernel, options, tile=tile, chip=chip)
        except UnsupportedKernelError:  # as rows that are overwritten need to be whole
            continue
        if _code(source) not in seen:
            seen.add(_code(source))
            yield tile, source


def _code(source: TritonKernelSource) -> tuple[object, ...]:
    """What a kernel's machine code and its launch depend on."""
    return replace(source, tile=Tile(0, 0, source.tile.num_warps, True)), str(source.constants)
