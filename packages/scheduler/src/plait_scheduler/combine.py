"""Launches of equal code that may run at the same time become one launch.

On a GPU a launch takes longer than a small kernel: updates of parameters, counters, copies of small
results. Those that `together.py` has put side by side and whose kernels are equal but for how many
points they have become one kernel with members (`CombinedKernel`), whose blocks are those of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import reduce
from itertools import pairwise
from operator import add

from plait_ir_lowering import Device, IndexExpr, Sym, atoms, bounds
from plait_scheduler.alignment import ACCESS_BYTES, aligned_places
from plait_scheduler.combined import POINTS, at, opened
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import points
from plait_scheduler.kernels import kernel_name
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.params import flat_params
from plait_scheduler.program import (
    AnyKernel,
    CombinedKernel,
    Kernel,
    Launch,
    Let,
    OnError,
    Program,
    ProgramBuffer,
    Step,
    Store,
)
from plait_scheduler.sizes import at_sizes, estimate, layout_at
from plait_scheduler.text.print import print_kernel
from plait_utils import dataclass


def combine_launches(program: Program, options: SchedulerOptions, log: DecisionLog) -> Program:
    """The program with launches combined where that may be."""
    combiner = _Combiner(program, options, log)
    steps = [step for run in _runs(program.steps) for step in combiner.combined(run)]
    if not combiner.made:
        return program
    launches = (step.launch if isinstance(step, OnError) else step for step in steps)
    launched = {launch.kernel for launch in launches if isinstance(launch, Launch)}
    kernels = [kernel for kernel in program.kernels if kernel.name in launched]
    return replace(program, kernels=(*kernels, *combiner.made.values()), steps=tuple(steps))


def _runs(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps in lists: launches that may run at the same time are in one."""
    run: list[Step] = []
    for step in steps:
        if run and not (isinstance(step, Launch) and step.together):
            yield run
            run = []
        run.append(step)
    yield run


@dataclass(frozen=True, slots=True)
class _Member:
    """A launch that may be combined with others of the same body and kind."""

    launch: Launch
    body: Kernel
    """Its kernel, over any number of points where these lie along one variable."""
    sizes: tuple[IndexExpr, ...]
    """What the body's sizes are, over those of the program."""
    kind: tuple[object, ...]
    """Where it runs, and which of its parameters are read and written 16 bytes at once: one that is
    not would take that from all."""


@dataclass(slots=True)
class _Combiner:
    program: Program
    options: SchedulerOptions
    log: DecisionLog
    buffers: dict[str, ProgramBuffer] = field(init=False)
    kernels: dict[str, AnyKernel] = field(init=False)
    opened: dict[str, tuple[Kernel, IndexExpr | None] | None] = field(default_factory=dict)
    """By the name of a kernel its body, and how many points that has there, if it is open; None for
    one that stays alone."""
    made: dict[CombinedKernel, CombinedKernel] = field(default_factory=dict)
    """Combined kernels without name, to the same with their names."""
    others: frozenset[Device] = field(init=False)
    """The devices of the program but the CPU, if it has others: their kernels read numbers of it,
    and what is computed there is not launched."""

    def __post_init__(self) -> None:
        self.buffers = {buffer.name: buffer for buffer in self.program.buffers}
        self.kernels = {kernel.name: kernel for kernel in self.program.kernels}
        devices = {buffer.device for buffer in self.program.buffers}
        self.others = frozenset(devices - {Device("cpu")} or devices)

    def combined(self, run: list[Step]) -> list[Step]:
        """The steps for launches that may run at the same time, each where its first was."""
        if len(run) == 1:
            return run
        groups: dict[object, list[_Member]] = {}
        steps: list[Launch | list[_Member]] = []
        for step in run:
            assert isinstance(step, Launch), "launches alone run at the same time"
            member = self._member(step)
            if member is None:
                steps.append(step)
                continue
            key = member.body, member.kind
            if key not in groups:
                steps.append(groups.setdefault(key, []))
            groups[key].append(member)
        found = [
            launch
            for each in steps
            for launch in ([each] if isinstance(each, Launch) else self._launches(each))
        ]
        return [replace(launch, together=number > 0) for number, launch in enumerate(found)]

    def _member(self, launch: Launch) -> _Member | None:
        """A launch as one of several; None for one that stays alone."""
        devices = tuple(self.buffers[name].device for name in launch.buffers)
        if len(self.others.intersection(devices)) != 1 or launch.kernel not in self.kernels:
            return None
        if launch.kernel not in self.opened:
            self.opened[launch.kernel] = self._opened(self.kernels[launch.kernel])
        found = self.opened[launch.kernel]
        if found is None:
            return None
        body, count = found
        kernel = self.kernels[launch.kernel]
        given = dict(zip(kernel.symbols, launch.symbols, strict=True))
        own = [given[symbol] for symbol in body.symbols if symbol in given]
        sizes = own if count is None else [at_sizes(count, given), *own]
        ends = [
            _is_even(param.dtype.itemsize * layout_at(param.layout, given).numel)
            for param in kernel.params
        ]
        starts = aligned_places(launch, self.buffers)
        return _Member(launch, body, tuple(sizes), (devices, starts, tuple(ends)))

    def _opened(self, kernel: AnyKernel) -> tuple[Kernel, IndexExpr | None] | None:
        """The body of a kernel that may be a member, with its points where these are open."""
        if not isinstance(kernel, Kernel) or not _is_pointwise(kernel):
            return None
        if estimate(points(kernel.outer)) > self.options.most_combined_points:
            return None
        return opened(flat_params(kernel)) or (replace(kernel, name=""), None)

    def _launches(self, members: Sequence[_Member]) -> list[Launch]:
        """Members by as few launches as can take them all, each about as many."""
        room = self.options.max_arguments - len(self.program.symbols)
        most = min(room // len(members[0].body.params), self.options.max_members)
        if len(members) < 2 or most < 2:
            return [member.launch for member in members]
        count = -(-len(members) // most)
        ends = [len(members) * number // count for number in range(count + 1)]
        parts = [members[begin:end] for begin, end in pairwise(ends)]
        return [launch for part in parts for launch in self._combined(part)]

    def _combined(self, members: Sequence[_Member]) -> list[Launch]:
        """One launch of all members, if that is to be."""
        launches = [member.launch for member in members]
        both = launches[0].buffers[-1], f"{len(launches) - 1} others"
        reason = "their kernels are equal but for how many points they have"
        if not self.log.settle(DecisionKind.COMBINE, both, None, reason):
            return launches
        body, sizes = members[0].body, [member.sizes for member in members]
        known = dict(zip(body.symbols, sizes[0], strict=True))
        if all(each == sizes[0] for each in sizes) and all(n.is_constant for n in sizes[0]):
            body, sizes = at(body, known, ()), [()] * len(sizes)
        elif POINTS in known:
            body = at(body, {POINTS: _covering([each[0] for each in sizes])}, body.symbols)
        open_sizes = {a for each in sizes for n in each for a in atoms(n) if isinstance(a, Sym)}
        symbols = sorted(open_sizes, key=lambda symbol: symbol.name)
        kernel = CombinedKernel("", body, tuple(s.name for s in symbols), tuple(sizes))
        return [
            Launch(
                self._named(kernel),
                tuple(name for launch in launches for name in launch.buffers),
                tuple(symbol.expr for symbol in symbols),
                reduce(add, (launch.origin for launch in launches)),
                offsets=_offsets(launches),
            )
        ]

    def _named(self, kernel: CombinedKernel) -> str:
        """The name of the kernel that is this one but for its name."""
        if kernel not in self.made:
            name = f"combined_{kernel_name(kernel.body, print_kernel(kernel))}"
            self.made[kernel] = replace(kernel, name=name)
        return self.made[kernel].name


def _is_pointwise(kernel: Kernel) -> bool:
    """Whether each of a kernel's points writes its own elements, and nothing else."""
    return not kernel.inner and all(
        isinstance(statement, Let)
        or (isinstance(statement, Store) and statement.kind is None and statement.first is None)
        for statement in kernel.statements
    )


def _is_even(nbytes: IndexExpr) -> bool:
    """Whether so many bytes are certainly some times 16."""
    return all(coefficient % ACCESS_BYTES == 0 for _, coefficient in nbytes.terms)


def _covering(sizes: Sequence[IndexExpr]) -> IndexExpr:
    """The size of a body that may have each of these values."""
    lows, highs = zip(*map(bounds, sizes), strict=True)
    upper = None if None in highs else max(highs)
    return Sym(POINTS, min(low or 0 for low in lows), upper).expr


def _offsets(launches: Sequence[Launch]) -> tuple[int, ...]:
    """The offsets of all buffers, one after the other; none where all are 0."""
    offsets = tuple(at for launch in launches for _, at in launch.places)
    return offsets if any(offsets) else ()
