"""Each of a kernel's tiles as a program of one launch, compiled side by side, on scratch memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch

from plait_ir_lowering import as_index
from plait_scheduler import AnyKernel, Attend, Launch, Mix, Program, at_sizes, print_kernel
from plait_triton_codegen.errors import TritonCodegenError, UnsupportedKernelError
from plait_triton_codegen.kernels import Chip, Tile, TritonKernelSource, tile_choices
from plait_triton_codegen.machine_code import kernel_jobs, machine_codes
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.scratch import Results, scratch_tensors
from plait_triton_codegen.stored_program import target_of
from plait_triton_codegen.timing import Run
from plait_utils import DiskCache, dataclass, get_logger, usable_processors

Builds = Callable[[Program, Mapping[str, Tile]], Callable[..., object]]
"""Builds a program with these tiles for kernels by name."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A kernel, its open sizes as they are at hand, and what it is in each of its tiles."""

    kernel: AnyKernel
    sizes: Mapping[str, int]
    sources: Mapping[Tile, TritonKernelSource]
    """The rule's first."""

    @property
    def rule(self) -> Tile:
        """The tile by rule."""
        return next(iter(self.sources))

    @property
    def text(self) -> str:
        """All that tells it from other kernels, whatever its name."""
        name, plain = self.kernel.name, replace(self.kernel, name="kernel")
        code = self.sources[self.rule].text.replace(name, "kernel")
        return f"{print_kernel(plain)}\n{code}\n{[*self.sizes.items()]}\n{[*self.sources]}"


Trials = Callable[[Candidates], Callable[[], Mapping[Tile, Run]]]
"""Begins to compile a kernel in its tiles. What it gives waits for them, and gives what launches
the kernel in each that it runs in."""


def candidates(
    program: Program,
    kernel: AnyKernel,
    sizes: Mapping[str, int],
    options: TritonOptions,
    chip: Chip,
    aligned: Collection[int],
) -> Candidates | None:
    """The tiles of a kernel; None where there is nothing to choose, or to time: no points, sizes
    that are not known, and attention that sees as much as data says.

    Args:
        sizes: of the program's, as they are at hand.
        aligned: positions of the parameters that begin at multiples of 16 bytes.
    """
    values = _launched(program, kernel, sizes)
    if values is None or _sees_by_data(kernel):
        return None
    try:
        sources = tile_choices(kernel, options, chip=chip, aligned=aligned)
    except UnsupportedKernelError:  # it runs as torch operations
        return None
    made = Candidates(kernel, values, sources)
    known = {name: as_index(value) for name, value in values.items()}
    extents = [at_sizes(extent, known) for extent, _ in sources[made.rule].blocks]
    is_empty = any(extent.is_constant and extent.as_int() == 0 for extent in extents)
    return None if is_empty or len(sources) < 2 else made


def _launched(
    program: Program, kernel: AnyKernel, sizes: Mapping[str, int]
) -> dict[str, int] | None:
    """The sizes of the largest launch of a kernel; None where there is none, or they are not
    known."""
    known = {name: as_index(value) for name, value in sizes.items()}
    launches = [s for s in program.steps if isinstance(s, Launch) and s.kernel == kernel.name]
    values = [[at_sizes(size, known) for size in launch.symbols] for launch in launches]
    if not all(size.is_constant for each in values for size in each):
        return None
    found = [[size.as_int() for size in each] for each in values]
    largest = max(found, key=sum, default=None)
    return None if largest is None else dict(zip(kernel.symbols, largest, strict=True))


def _sees_by_data(kernel: AnyKernel) -> bool:
    statements = getattr(kernel, "statements", ())
    return any(isinstance(each, Attend | Mix) and each.spans for each in statements)


def trials_on(
    device: torch.device,
    program: Program,
    options: TritonOptions,
    cache: DiskCache,
    build: Builds,
) -> Trials:
    """What tries the kernels of a program on a device."""
    from plait_cpp_codegen import kernel_alone

    def begin(one: Candidates) -> Callable[[], Mapping[Tile, Run]]:
        alone = kernel_alone(program, one.kernel, one.sizes)
        refused = _no_refused
        if device.type == "cuda" and options.native_host:
            with contextlib.suppress(TritonCodegenError):  # as where kernels are interpreted
                refused = _compiling(alone, one, options, cache, target_of(device.index or 0))

        def runs() -> Mapping[Tile, Run]:
            tiles = [tile for tile in one.sources if tile not in refused()]
            return _runs(alone, one, tiles, build, device)

        return runs

    return begin


def _no_refused() -> frozenset[Tile]:
    return frozenset()


def _compiling(
    alone: Program, one: Candidates, options: TritonOptions, cache: DiskCache, target: str
) -> Callable[[], frozenset[Tile]]:
    """Begin to compile a kernel in each tile, side by side. What is given waits for all of them,
    and tells which Triton does not take."""
    tiles = {str(number): tile for number, tile in enumerate(one.sources)}
    jobs = {}
    for name, tile in tiles.items():
        (jobs[name],) = kernel_jobs(alone, {one.kernel.name: one.sources[tile]}, target).values()
    codes = machine_codes(jobs, cache, options.workers)

    def refused() -> frozenset[Tile]:
        with contextlib.suppress(TritonCodegenError):
            codes.wait()
        return frozenset(tiles[n] for n, made in codes.waiting.items() if made.error is not None)

    return refused


def _runs(
    alone: Program,
    one: Candidates,
    tiles: Collection[Tile],
    build: Builds,
    device: torch.device,
) -> dict[Tile, Run]:
    """What launches a kernel in each of these tiles; those are left out which fail, and those whose
    results are not the rule's."""
    kernel = one.kernel
    tensors = scratch_tensors(kernel, one.sizes, device)

    def ready(tile: Tile) -> Run | Exception:
        try:
            return partial(build(alone, {kernel.name: tile}), *tensors)
        except Exception as error:  # of a compiler, or the driver
            return error

    # hosts in C++ are compiled side by side; what interprets kernels holds Python's lock
    many = usable_processors() if device.type == "cuda" else 1
    with ThreadPoolExecutor(many) as pool:
        made = dict(zip(tiles, pool.map(ready, tiles), strict=True))
    runs: dict[Tile, Run] = {}
    results = Results(kernel, tensors)
    for tile, run in made.items():
        try:
            if isinstance(run, Exception):
                raise run
            results.check(run)
        except Exception as error:  # of Triton's or the driver: too large for this device
            get_logger("triton").info("%s has no %s: %s", kernel.name, tile, error)
            continue
        runs[tile] = run
    return runs
