"""What times kernels where they run: events of a GPU, or the processor's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import TypeVar

import torch

Run = Callable[[], object]
Clock = Callable[[Run, int], float]
"""The seconds that so many calls of something take."""
K = TypeVar("K", bound=Hashable)
Times = Callable[[Mapping[K, Run]], Mapping[K, Sequence[float]]]
"""The seconds of a call of each of these, such as tiles, round by round."""

_ROUND_SECONDS = 4e-4
"""What one tile runs in one round, by being repeated."""
_FLUSHED = 2
"""How many times a GPU's second cache is written to so that it holds nothing else."""
_USUAL_CACHE = 64 << 20
"""Bytes of that, where torch does not tell."""


def gpu_clock(run: Run, calls: int) -> float:
    """By events of the GPU's stream, between which the calls are launched."""
    begin, end = _events()
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def cold_clock(device: torch.device) -> Clock:
    """By events around each call, before which the second cache of the GPU is overwritten: a kernel
    finds nothing there of its last call. While that takes place the host is ahead of the GPU, so
    that its own time does not count."""
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or _USUAL_CACHE

    def seconds(run: Run, calls: int) -> float:
        other = torch.empty(_FLUSHED * size, dtype=torch.int8, device=device)
        pairs = [_events() for _ in range(calls)]
        for begin, end in pairs:
            other.zero_()
            begin.record()
            run()
            end.record()
        pairs[-1][1].synchronize()
        return sum(float(begin.elapsed_time(end)) for begin, end in pairs) / 1e3

    return seconds


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    # torch has no types for them
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    return begin, end


def processor_clock(run: Run, calls: int) -> float:
    """By the processor's clock, for programs in Triton's interpreter."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - begin


def device_clock(device: torch.device) -> Clock:
    """What times programs on a device."""
    return gpu_clock if device.type == "cuda" else processor_clock


def kernel_times(device: torch.device) -> Times[K] | None:
    """What times kernels on a device, in turns; None where Triton's interpreter runs them, whose
    times say nothing about tiles. Raises ImportError without plait-cpp-codegen."""
    from plait_cpp_codegen import times_in_turns

    if device.type != "cuda":
        return None
    return partial(times_in_turns, clock=cold_clock(device), round_seconds=_ROUND_SECONDS)


def device_key(device: torch.device) -> str:
    """What times depend on beside the program: the device, and Triton's version."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{kind}, Triton {metadata.version('triton')}, torch {torch.__version__}"
