"""Chained launches as hosts of GPUs launch them: one kernel, whose links run in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import reduce
from operator import add

from plait_scheduler.kernels import kernel_name
from plait_scheduler.program import (
    Allocate,
    ChainedKernel,
    Free,
    Kernel,
    Launch,
    OnError,
    Program,
    Step,
)
from plait_scheduler.text.print import print_kernel
from plait_utils import dataclass


def with_chains(program: Program) -> Program:
    """The program with a launch of a `ChainedKernel` for each chain of launches.

    What its links write is allocated before it, what they need no more is freed behind it; buffers
    that follow each other in memory are written in turn, as before. `program` is sound; what comes
    of it is for hosts alone, since a link may be given what another has just written.
    """
    if not any(isinstance(step, Launch) and step.chained for step in program.steps):
        return program
    joiner = _Joiner({k.name: k for k in program.kernels if isinstance(k, Kernel)})
    chain: list[Step] = []
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Launch) and not step.chained:
            apart = len(steps) + len(chain)
            steps += joiner.joined(chain)
            chain = [step if len(steps) == apart else replace(step, together=False)]
        elif chain and isinstance(step, Launch | Allocate | Free):
            chain.append(step)
        else:
            steps += [*joiner.joined(chain), step]
            chain = []
    steps += joiner.joined(chain)
    launched = {step.kernel for step in steps if isinstance(step, Launch)}
    undone = {step.launch.kernel for step in program.steps if isinstance(step, OnError)}
    kernels = [kernel for kernel in program.kernels if kernel.name in launched | undone]
    return replace(program, kernels=(*kernels, *joiner.made.values()), steps=tuple(steps))


@dataclass(slots=True)
class _Joiner:
    kernels: dict[str, Kernel]
    made: dict[ChainedKernel, ChainedKernel] = field(default_factory=dict)
    """Chained kernels without name, to the same with their names."""

    def joined(self, chain: Sequence[Step]) -> list[Step]:
        """A launch, those that are chained to it, and what is between and behind them, with one
        launch for all."""
        launches = [step for step in chain if isinstance(step, Launch)]
        if len(launches) < 2:
            return [*chain]
        last = max(place for place, step in enumerate(chain) if step is launches[-1])
        before = [step for step in chain[:last] if isinstance(step, Allocate)]
        behind = [step for step in chain[:last] if isinstance(step, Free)]
        return [*before, self._launch(launches), *behind, *chain[last + 1 :]]

    def _launch(self, launches: Sequence[Launch]) -> Launch:
        places = {name: n for n, name in enumerate(dict.fromkeys(each.kernel for each in launches))}
        kernels = tuple(self.kernels[name] for name in places)
        kernel = ChainedKernel("", kernels, tuple(places[each.kernel] for each in launches))
        offsets = tuple(at for launch in launches for _, at in launch.places)
        return Launch(
            self._named(kernel),
            tuple(name for launch in launches for name in launch.buffers),
            origin=reduce(add, (launch.origin for launch in launches)),
            offsets=offsets if any(offsets) else (),
        )

    def _named(self, kernel: ChainedKernel) -> str:
        """The name of the kernel that is this one but for its name."""
        if kernel not in self.made:
            text = "\n".join([str(kernel.links), *map(print_kernel, kernel.kernels)])
            name = f"chained_{kernel_name(kernel.kernels[0], text)}"
            self.made[kernel] = replace(kernel, name=name)
        return self.made[kernel].name
