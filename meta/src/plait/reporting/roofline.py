"""Kernels one by one: what they move and compute, and how near to copying they come."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from plait.record import CompiledGraph
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_scheduler import Kernel, Program


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One kernel of a graph."""

    name: str
    launches: int
    """How often one call of the graph runs it."""
    bytes_moved: int
    """By one launch, of elements that it reads and writes, each once."""
    operations: int
    """Of scalars, by one launch, but conversions; an `exp` is one."""
    seconds: float | None = None
    """The least that one launch took, alone; None where it was not timed."""
    copy_seconds: float | None = None
    """The least that `torch.Tensor.copy_` took to move as many bytes."""

    @property
    def share(self) -> float | None:
        """The achieved share of the speed of copying: 1 where a copy takes as long."""
        if self.seconds is None or self.copy_seconds is None:
            return None
        return self.copy_seconds / self.seconds

    def __str__(self) -> str:
        parts = [f"{self.bytes_moved:,} bytes", f"{self.operations:,} operations"]
        if self.seconds is not None and self.share is not None:
            speed = self.bytes_moved / self.seconds / 1e9
            parts.append(f"{self.seconds * 1e6:,.1f} µs, {speed:.1f} GB/s")
            parts.append(f"{self.share:.0%} of copy speed")
        times = f" ×{self.launches}" if self.launches > 1 else ""
        return f"{self.name}{times}: {', '.join(parts)}"


def kernel_facts(record: CompiledGraph, *, measure: bool) -> tuple[KernelFact, ...]:
    """The kernels of a graph, those that move most first.

    With `measure` each runs alone, in C++ on tensors of its own: floats are drawn, all other
    numbers are zeros. Kernels of programs for several sizes, or of other backends, are not timed.
    """
    if record.schedule is None:
        return ()
    from plait_scheduler import Kernel, Launch, kernel_work

    program = record.schedule.program
    kernels = {kernel.name: kernel for kernel in program.kernels}
    launches = [step for step in program.steps if isinstance(step, Launch)]
    counts = Counter(launch.kernel for launch in launches)
    on_cpu = record.code is not None and record.code.backend == "cpp"
    facts = []
    for launch in {launch.kernel: launch for launch in launches}.values():
        kernel = kernels[launch.kernel]
        work = kernel_work(kernel)
        fact = KernelFact(launch.kernel, counts[launch.kernel], work.bytes_moved, work.operations)
        if measure and on_cpu and not program.symbols and isinstance(kernel, Kernel):
            fact = _timed(fact, program, kernel)
        facts.append(fact)
    return tuple(sorted(facts, key=lambda fact: -fact.bytes_moved * fact.launches))


def _timed(fact: KernelFact, program: Program, kernel: Kernel) -> KernelFact:
    from plait_cpp_codegen import build, kernel_alone, kernel_tensors, times_in_turns

    made = build(kernel_alone(program, kernel))
    if made.source is None:  # no compiler any more
        return fact
    tensors = kernel_tensors(kernel)
    half = max(1, fact.bytes_moved // 2)
    source, target = (torch.zeros(half, dtype=torch.uint8) for _ in range(2))
    runs = {"kernel": lambda: made.run(*tensors), "copy": lambda: target.copy_(source)}
    taken = times_in_turns(runs)
    seconds, copy_seconds = min(taken["kernel"]), min(taken["copy"])
    return replace(fact, seconds=seconds, copy_seconds=copy_seconds)
