"""The blocks of each product of matrices by timing: built, run on its shapes, and remembered.

For each kernel that multiplies matrices, every tile of the table that fits becomes a program of one
launch. Those run in turns, as plait-cpp-codegen times its choices: what is faster than the rule's
tile beyond doubt is chosen. The disk cache keeps what was found by the kernel's text, the options
and the device.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata

import torch

from plait_scheduler import Access, CombinedKernel, Kernel, Program, print_kernel
from plait_triton_codegen.errors import TritonCodegenError
from plait_triton_codegen.kernels import Chip, Tile, product_choices, render_kernel
from plait_triton_codegen.kernels.products import product_of
from plait_triton_codegen.machine_code import aligned_arguments, kernel_jobs, machine_codes
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.stored_program import target_of
from plait_utils import DiskCache, get_logger, stable_hash, usable_processors, warn_once
from plait_utils.interrupts import stop_if_interrupted

_FORMAT = "1"

Run = Callable[[], object]
Clock = Callable[[Run, int], float]
"""The seconds that so many calls of something take."""
Builds = Callable[[Program, Mapping[str, Tile]], Callable[..., object]]
"""Builds a program with these tiles for kernels by name."""
RunsAlone = Callable[[Kernel, Sequence[Tile]], Mapping[Tile, Run]]
"""What launches a kernel in each of these tiles on tensors of its own."""


@dataclass(frozen=True, slots=True)
class TunedTile:
    """What was found for one kernel."""

    kernel: str
    tile: Tile
    rule: Tile
    seconds: float
    """What a launch in this tile took."""
    rule_seconds: float
    """What one in the rule's took."""
    from_cache: bool

    def __str__(self) -> str:
        where = ", as was found before" if self.from_cache else ""
        if self.tile == self.rule:
            return f"{self.kernel}: the rule's blocks stay, {_micros(self.rule_seconds)}{where}"
        return (
            f"{self.kernel}: {shown(self.tile)} instead of {shown(self.rule)}, "
            f"{_micros(self.seconds)} instead of {_micros(self.rule_seconds)}{where}"
        )


def shown(tile: Tile) -> str:
    """A product's tile, for people."""
    shared = f", shared out among {tile.programs} programs" if tile.programs else ""
    return (
        f"blocks of {tile.xblock}x{tile.rblock}x{tile.kblock} by {tile.num_warps} warps "
        f"in {tile.stages} stages{' by descriptors' if tile.described else ''}{shared}"
    )


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def gpu_clock(run: Run, calls: int) -> float:
    """By events of the GPU's stream, between which the calls are launched."""
    # torch has no types for them
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def processor_clock(run: Run, calls: int) -> float:
    """By the processor's clock, for kernels in Triton's interpreter."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - begin


def device_clock(device: torch.device) -> Clock:
    """What times kernels on a device."""
    return gpu_clock if device.type == "cuda" else processor_clock


def device_key(device: torch.device) -> str:
    """What times depend on beside the program: the device, and Triton's version."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{kind}, Triton {metadata.version('triton')}, torch {torch.__version__}"


def tuned_on_device(
    program: Program,
    options: TritonOptions,
    chip: Chip,
    cache: DiskCache,
    build: Builds,
) -> tuple[TunedTile, ...]:
    """Tiles for the products of a program, timed where its buffers are; none where that is not one
    device, or nothing can be timed there."""
    devices = {buffer.device for buffer in program.buffers}
    if len(devices) != 1:
        return ()
    device = torch.device(str(devices.pop()))

    def runs_alone(kernel: Kernel, choices: Sequence[Tile]) -> Mapping[Tile, Run]:
        from plait_cpp_codegen import kernel_alone, kernel_tensors

        one = kernel_alone(program, kernel)
        if device.type == "cuda":
            _compile_at_once(one, choices, options, cache, target_of(device.index or 0))
        tensors = kernel_tensors(kernel, device)
        _fill_groups(kernel, tensors)

        def ready(tile: Tile) -> Run | Exception:
            try:
                return partial(build(one, {kernel.name: tile}), *tensors)
            except Exception as error:  # of a compiler, or the driver
                return error

        # hosts in C++ are compiled side by side; what interprets kernels holds Python's lock
        many = usable_processors() if device.type == "cuda" else 1
        with ThreadPoolExecutor(many) as pool:
            made = dict(zip(choices, pool.map(ready, choices), strict=True))
        runs: dict[Tile, Run] = {}
        results = Results(kernel, tensors)
        for tile, run in made.items():
            try:
                if isinstance(run, Exception):
                    raise run
                results.check(run)
            except Exception as error:  # of Triton's or the driver: too large for this device
                get_logger("triton").info("%s has no %s: %s", kernel.name, shown(tile), error)
                continue
            runs[tile] = run
        return runs

    try:
        facts = device_clock(device), device_key(device)
        return tune(program, options, chip, cache, runs_alone, *facts)
    except (ImportError, TritonCodegenError, RuntimeError) as error:
        warn_once("triton", f"tuning: {error}", "products are not timed: %s", error)
        return ()


def _fill_groups(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> None:
    """Let the groups of rows, or of terms, that a product has be equally large."""
    found = product_of(kernel)
    groups = None if found is None else found.groups or found.term_groups
    if found is None or groups is None:
        return
    (var,) = found.rows if found.groups is not None else found.inner
    place = [param.name for param in kernel.params].index(groups.ends)
    for number in range(groups.count):
        tensors[place][number] = (number + 1) * var.extent.as_int() // groups.count


_SHARE = 2e-2
"""By how much results may differ, whose sums are added up in another order: of each one, and four
times of a usual one."""
_FEW = 1e-3
"""Of integers that such sums are rounded to, how many may be the next ones."""


class Results:
    """What a kernel writes, by which a compiler's faults in one of its forms show.

    Args:
        tensors: its arguments, as launches use them.
    """

    def __init__(self, kernel: Kernel, tensors: Sequence[torch.Tensor]) -> None:
        pairs = [*zip(kernel.params, tensors, strict=True)]
        self._written = [t for param, t in pairs if param.access is Access.WRITE]
        if any(param.access is Access.READ_WRITE for param, _ in pairs):
            self._written = []  # they depend on how often it has run
        self._known: list[torch.Tensor] | None = None

    def check(self, run: Run) -> None:
        """Run the kernel. Raises TritonCodegenError where its results are not those of the first
        run."""
        for tensor in self._written:
            tensor.zero_()
        run()
        if self._known is None:
            self._known = [tensor.clone() for tensor in self._written]
            return
        for got, known in zip(self._written, self._known, strict=True):
            if not _agree(got, known):
                raise TritonCodegenError("its results are not those of the rule's blocks")


def _agree(got: torch.Tensor, known: torch.Tensor) -> bool:
    """Whether two results differ as sums in another order do: numbers of integers that are rounded
    sums may be the next ones in a few places."""
    is_rounded = not known.is_floating_point()
    share = _SHARE if is_rounded else max(_SHARE, torch.finfo(known.dtype).eps)  # of 8 bits, 1/4
    got, known = got.float(), known.float()
    apart = (got - known).abs()
    if not known.numel() or not apart.nan_to_num(0.0).any():
        return torch.equal(got.isnan(), known.isnan())
    if is_rounded:
        return bool(apart.max() <= 1 and (apart > 0).float().mean() <= _FEW)
    usual = float(known.nan_to_num(0.0, 0.0, 0.0).abs().mean())
    return torch.allclose(got, known, rtol=share, atol=4 * _SHARE * usual, equal_nan=True)


def _compile_at_once(
    one: Program, choices: Sequence[Tile], options: TritonOptions, cache: DiskCache, target: str
) -> None:
    """Compile a kernel in each tile, side by side; what fails does so again when it is built."""
    (kernel,) = one.kernels
    jobs = {}
    for number, tile in enumerate(choices):
        source = render_kernel(kernel, options, tile=tile)
        (jobs[str(number)],) = kernel_jobs(one, {kernel.name: source}, target).values()
    with contextlib.suppress(TritonCodegenError):
        machine_codes(jobs, cache, options.workers).wait()


def tune(
    program: Program,
    options: TritonOptions,
    chip: Chip,
    cache: DiskCache,
    runs_alone: RunsAlone,
    clock: Clock,
    device: str,
) -> tuple[TunedTile, ...]:
    """Tiles for the products of matrices among a program's kernels.

    Kernels with open sizes are left to the rule.

    Args:
        clock: times the launches.
        device: says on which device, and by which Triton.
    """
    found, aligned = [], aligned_arguments(program)
    for kernel in program.kernels:
        if isinstance(kernel, CombinedKernel) or kernel.symbols or program.symbols:
            continue
        places = aligned.get(kernel.name, ())
        choices = product_choices(kernel, options, chip=chip, aligned=places)
        if len(choices) < 2:
            continue
        stop_if_interrupted()
        key = stable_hash(
            "tuned tile", _FORMAT, print_kernel(kernel), repr(options), repr(choices), device
        )
        made = _read(kernel.name, choices, cache.get(key))
        if made is None:
            made = _timed(kernel, choices, runs_alone, clock)
            held = {name: value for name, value in asdict(made).items() if name in _KEPT}
            cache.put(key, json.dumps(held).encode())
            get_logger("triton").info("tuned %s", made)
        found.append(made)
    return tuple(found)


_KEPT = ("tile", "seconds", "rule_seconds")


def _read(name: str, choices: Sequence[Tile], data: bytes | None) -> TunedTile | None:
    """What is stored; None where it has another form."""
    try:
        held = {} if data is None else json.loads(data)
        tile = Tile(**held["tile"])
        seconds = float(held["seconds"]), float(held["rule_seconds"])
    except (ValueError, KeyError, TypeError):
        return None
    if tile not in choices:
        return None
    return TunedTile(name, tile, choices[0], *seconds, from_cache=True)


def _timed(
    kernel: Kernel, choices: Sequence[Tile], runs_alone: RunsAlone, clock: Clock
) -> TunedTile:
    """The fastest by more than noise, or the rule's, which is the first."""
    from plait_cpp_codegen import fastest, times_in_turns

    rule = choices[0]
    runs = runs_alone(kernel, choices)

    def in_turns(some: Mapping[Tile, Run]) -> Mapping[Tile, Sequence[float]]:
        return times_in_turns(some, clock)

    if rule not in runs:
        raise TritonCodegenError(f"{kernel.name} does not run in the rule's blocks")
    chosen = fastest(runs, rule, in_turns)
    seconds = in_turns({each: runs[each] for each in {rule, chosen}})
    best, usual = (statistics.median(seconds[each]) for each in (chosen, rule))
    return TunedTile(kernel.name, chosen, rule, best, usual, from_cache=False)
