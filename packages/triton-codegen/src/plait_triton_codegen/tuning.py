"""The blocks of each kernel by timing: built, run on its shapes, and remembered.

For each kernel the rule's tile and others that are not far from it (`kernels/choices.py`), of a
product of matrices all of a table that fit, become programs of one launch. Those run in turns, as
plait-cpp-codegen times its choices, on memory of their own (`trials.py`, `timing.py`): what is
faster than the rule's tile beyond doubt is chosen. The disk cache keeps what was found by the
kernel's text, the sizes at hand, the options and the device. A tile suits all sizes, whatever it
was timed at.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace

import torch

from plait_ir_lowering import Device
from plait_scheduler import Program
from plait_triton_codegen.build import ON_CPU
from plait_triton_codegen.errors import TritonCodegenError
from plait_triton_codegen.kernels import Chip, Tile
from plait_triton_codegen.machine_code import aligned_arguments
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.timing import Run, Times, device_key, kernel_times
from plait_triton_codegen.trials import Builds, Candidates, Trials, candidates, trials_on
from plait_utils import DiskCache, get_logger, stable_hash, warn_once
from plait_utils.interrupts import seconds_left, stop_if_interrupted

_FORMAT = "3"
_MARGIN = 0.97
"""A tile that is chosen takes at most this much of the time that the rule's does."""
_AHEAD = 4
"""Kernels that are compiled in all their tiles while one is timed."""
_SHARE = 0.5
"""Of the seconds that compiling may still take, what timing may."""


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
    times: tuple[tuple[Tile, float], ...] = ()
    """What one took in each tile that was timed, the rule's first."""

    def __str__(self) -> str:
        where = ", as was found before" if self.from_cache else ""
        others = [(t, s) for t, s in self.times if t not in (self.tile, self.rule)]
        tried = "".join(f"; {shown(tile)}: {_micros(seconds)}" for tile, seconds in others)
        if self.tile == self.rule:
            stays = f"the rule's blocks stay, {shown(self.rule)}"
            return f"{self.kernel}: {stays}, {_micros(self.rule_seconds)}{where}{tried}"
        return (
            f"{self.kernel}: blocks of {shown(self.tile)} instead of {shown(self.rule)}, "
            f"{_micros(self.seconds)} instead of {_micros(self.rule_seconds)}{where}{tried}"
        )


def shown(tile: Tile) -> str:
    """A tile's blocks, for people."""
    sides = [tile.xblock, tile.rblock, tile.kblock] if tile.kblock else [tile.xblock, tile.rblock]
    facts = [f"{'x'.join(map(str, sides))} by {tile.num_warps} warps"]
    if tile.persistent:
        facts.append("without a loop")
    if tile.stages:
        facts.append(f"in {tile.stages} stages")
    if tile.described:
        facts.append(f"by descriptors{', the result too' if tile.described_result else ''}")
    if tile.turns > 1:
        facts.append(f"{tile.turns} to a program")
    if tile.roles:
        facts.append(f"with roles, {tile.roles}")
    shared = f", shared out among {tile.programs} programs" if tile.programs else ""
    return f"{' '.join(facts)}{shared}"


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def tuned_on_device(
    program: Program,
    options: TritonOptions,
    chip: Chip,
    cache: DiskCache,
    build: Builds,
    sizes: Mapping[str, int] | None = None,
) -> tuple[TunedTile, ...]:
    """Tiles for the kernels of a program, timed where its buffers are; none where that is not one
    device, or nothing can be timed there.

    Args:
        sizes: the values of the program's open sizes at hand, by name.
    """
    devices = {buffer.device for buffer in program.buffers}
    devices = devices - {Device("cpu")} or devices  # beside a GPU the CPU computes numbers
    if len(devices) != 1:
        return ()
    device = torch.device(str(devices.pop()))
    with _current(device):
        try:
            times: Times[Tile] | None = kernel_times(device)
            trials = trials_on(device, program, options, cache, build)
        except (ImportError, RuntimeError) as error:
            warn_once("triton", f"tuning: {error}", "kernels are not timed: %s", error)
            return ()
        if times is None:
            return ()
        facts = trials, times, device_key(device), sizes or {}
        return tune(program, options, chip, cache, *facts)


def _current(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def tune(
    program: Program,
    options: TritonOptions,
    chip: Chip,
    cache: DiskCache,
    trials: Trials,
    times: Times[Tile],
    device: str,
    sizes: Mapping[str, int],
) -> tuple[TunedTile, ...]:
    """Tiles for a program's kernels, equal ones of which are timed once.

    Kernels are left to the rule whose sizes are not known, and those for which no seconds are left:
    half of what `plait_utils.interrupts.seconds_left` tells of goes to timing.

    Args:
        trials: tries a kernel in its tiles.
        times: times the launches.
        device: says on which device, and by which Triton.
        sizes: the values of the program's open sizes at hand.
    """
    aligned = aligned_arguments(program)
    named: dict[str, list[Candidates]] = {}
    for kernel in program.kernels:
        if kernel.name.endswith(ON_CPU):
            continue
        stop_if_interrupted()
        places = aligned.get(kernel.name, frozenset())
        one = candidates(program, kernel, sizes, options, chip, places)
        if one is not None:
            key = stable_hash("tuned tile", _FORMAT, one.text, options.cache_key(), device)
            named.setdefault(key, []).append(one)
    found = {key: _read(same[0], cache.get(key)) for key, same in named.items()}
    waiting = {key: named[key][0] for key, made in found.items() if made is None}
    for key, made in _timed_in_time(waiting, trials, times):
        found[key] = made
        cache.put(key, _stored(made))
        get_logger("triton").info("tuned %s", made)
    tiles = {
        one.kernel.name: replace(made, kernel=one.kernel.name)
        for key, made in found.items()
        if made is not None
        for one in named[key]
    }
    return tuple(tiles[kernel.name] for kernel in program.kernels if kernel.name in tiles)


def _timed_in_time(
    waiting: Mapping[str, Candidates], trials: Trials, times: Times[Tile]
) -> Iterator[tuple[str, TunedTile]]:
    """What is found for each of these kernels while there are seconds for it."""
    left = seconds_left()
    until = math.inf if left is None else time.monotonic() + _SHARE * left
    begun: list[Callable[[], Mapping[Tile, Run]]] = []
    every = [*waiting.values()]
    for number, (key, one) in enumerate(waiting.items()):
        stop_if_interrupted()
        if time.monotonic() > until:
            message = "%s and what follows are not timed: compiling has few seconds left"
            get_logger("triton").info(message, one.kernel.name)
            return
        begun += [trials(later) for later in every[len(begun) : number + _AHEAD]]
        with _told(one.kernel.name):
            yield key, _timed(one, begun[number], times)


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Tell of what keeps a kernel from being timed: the rule's tile stays."""
    try:
        yield
    except (ImportError, TritonCodegenError, RuntimeError) as error:
        warn_once("triton", f"tuning: {error}", "%s is not timed: %s", name, error)


def _stored(made: TunedTile) -> bytes:
    times = [[asdict(tile), seconds] for tile, seconds in made.times]
    held = {"tile": asdict(made.tile), "rule_seconds": made.rule_seconds, "seconds": made.seconds}
    return json.dumps({**held, "times": times}).encode()


def _read(one: Candidates, data: bytes | None) -> TunedTile | None:
    """What is stored; None where it has another form."""
    try:
        held = {} if data is None else json.loads(data)
        tile = Tile(**held["tile"])
        seconds = float(held["seconds"]), float(held["rule_seconds"])
        times = tuple((Tile(**each), float(taken)) for each, taken in held["times"])
    except (ValueError, KeyError, TypeError):
        return None
    if tile not in one.sources or not all(each in one.sources for each, _ in times):
        return None
    return TunedTile(one.kernel.name, tile, one.rule, *seconds, from_cache=True, times=times)


def _timed(
    one: Candidates, begun: Callable[[], Mapping[Tile, Run]], times: Times[Tile]
) -> TunedTile:
    """The fastest by more than noise, or the rule's."""
    from plait_cpp_codegen import fastest

    runs, rule = begun(), one.rule
    if rule not in runs:
        raise TritonCodegenError(f"{one.kernel.name} does not run in the rule's blocks")
    seconds: dict[Tile, float] = {}

    def in_turns(some: Mapping[Tile, Run]) -> Mapping[Tile, Sequence[float]]:
        made = times(some)
        seconds.update({tile: statistics.median(taken) for tile, taken in made.items()})
        return made

    chosen = fastest(runs, rule, in_turns, _MARGIN)
    return TunedTile(
        one.kernel.name,
        chosen,
        rule,
        seconds[chosen],
        seconds[rule],
        from_cache=False,
        times=tuple(seconds.items()),
    )
