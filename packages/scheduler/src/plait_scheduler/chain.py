"""Small launches one behind the other become one launch, of one program.

On a GPU a small kernel is over before the host has launched the next. Those that one program runs
about as fast as many would are chained (`Launch.chained`): hosts of GPUs launch them as one kernel
that waits between its links (`chained.py`), hosts of CPUs one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from plait_ir_lowering import Device
from plait_scheduler.attention_masks import may_fail
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.program import (
    Accumulate,
    Allocate,
    AnyKernel,
    Attend,
    Free,
    Kernel,
    Launch,
    Mix,
    Program,
    ProgramBuffer,
    Statement,
    Step,
    Store,
)
from plait_scheduler.roofline import kernel_work
from plait_utils import dataclass


def chain_launches(program: Program, options: SchedulerOptions, log: DecisionLog) -> Program:
    """The program with launches chained where that may be."""
    chainer = _Chainer(program, options, log)
    return replace(program, steps=tuple(chainer.steps()))


@dataclass(slots=True)
class _Chainer:
    program: Program
    options: SchedulerOptions
    log: DecisionLog
    buffers: dict[str, ProgramBuffer] = field(init=False)
    kernels: dict[str, AnyKernel] = field(init=False)
    small: dict[str, bool] = field(default_factory=dict)
    """By the name of a kernel, whether it may be a link."""

    def __post_init__(self) -> None:
        self.buffers = {buffer.name: buffer for buffer in self.program.buffers}
        self.kernels = {kernel.name: kernel for kernel in self.program.kernels}

    def steps(self) -> Iterator[Step]:
        """The steps, with launches chained."""
        last: Launch | None = None
        device: Device | None = None
        links = arguments = 0
        for step in self.program.steps:
            if isinstance(step, Allocate | Free):
                yield step
                continue
            here = self._device_of(step) if isinstance(step, Launch) else None
            if here is None or not isinstance(step, Launch):
                last = None
                yield step
                continue
            arguments += len(step.buffers)
            fits = links < self.options.max_links and arguments <= self.options.max_arguments
            if last is not None and here == device and fits and self._is_to_be(last, step):
                links += 1
                last = replace(step, together=False, chained=True)
            else:
                last, device, links, arguments = step, here, 1, len(step.buffers)
            yield last

    def _device_of(self, launch: Launch) -> Device | None:
        """The device of a launch that may be a link; None of one that may not, as of one on the CPU
        beside a GPU."""
        devices = {self.buffers[name].device for name in launch.buffers}
        if len(devices) > 1 or not self._is_small(launch.kernel):
            return None
        (device,) = devices
        beside = device.type == "cpu" and any(b.device != device for b in self.program.buffers)
        return None if beside else device

    def _is_small(self, name: str) -> bool:
        if name not in self.small:
            self.small[name] = is_link(self.kernels[name], self.options)
        return self.small[name]

    def _is_to_be(self, first: Launch, second: Launch) -> bool:
        both = first.buffers[-1], second.buffers[-1]
        reason = "both are over before the second would be launched"
        return self.log.settle(DecisionKind.CHAIN, both, None, reason)


def is_link(kernel: AnyKernel, options: SchedulerOptions) -> bool:
    """Whether one program may run a kernel between others: it cannot fail, and is small."""
    if not isinstance(kernel, Kernel) or kernel.symbols:
        return False
    if any(_has_rules_of_its_own(statement) for statement in kernel.statements):
        return False
    work = kernel_work(kernel)
    return (
        work.bytes_moved <= options.most_chained_bytes
        and work.operations <= options.most_chained_operations
    )


def _has_rules_of_its_own(statement: Statement) -> bool:
    """Whether a kernel of such a statement shares its work out among programs in ways of its own,
    or reports what it finds."""
    if isinstance(statement, Attend | Mix):
        return True
    if isinstance(statement, Store) and statement.kind is not None:
        return True
    values = [statement.value]
    values += [statement.combine] if isinstance(statement, Accumulate) else []
    return any(may_fail(value) for value in values)
