"""Copies to inputs at a program's end as kernels, which a GPU takes together.

The statistics of a model's normalizations are many small buffers, and a copy of each takes a GPU
longer than the bytes do. Kernels that copy are equal but for how many points they have, so they
become one launch (`combine.py`); and recordings find them where their inputs have moved.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from plait_ir_lowering import Buffer, Definition, Load, Pointwise, Var, as_index
from plait_scheduler.groups import group_of
from plait_scheduler.nodes import node_of
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.program import (
    Allocate,
    CopyBack,
    Free,
    Launch,
    Program,
    ProgramBuffer,
    SharedStorage,
    Step,
)
from plait_scheduler.shared_kernels import SharedKernels
from plait_scheduler.writeback import is_whole


def with_launched_copies(program: Program, options: SchedulerOptions) -> Program:
    """The program with launches for copies of whole buffers to inputs that lie in memory alike."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    copies = [
        step
        for step in program.steps
        if isinstance(step, CopyBack)
        and is_whole(step.source, buffers, step.input)
        and buffers[step.input].layout.numel is not as_index(0)
    ]
    if not copies:
        return program
    made = [_written(buffers[copy.input], buffers.keys()) for copy in copies]
    plain = {b.name: Buffer(b.name, b.dtype, b.device, b.layout) for b in (*program.buffers, *made)}
    kernels = SharedKernels(plain, options, frozenset())
    launches = [
        replace(_launch(copy, plain[written.name], kernels), together=number > 0)
        for number, (copy, written) in enumerate(zip(copies, made, strict=True))
    ]
    named = {kernel.name: kernel for kernel in (*program.kernels, *kernels.named.values())}
    steps = tuple(_steps(program.steps, copies, made, launches))
    return replace(
        program,
        buffers=(*program.buffers, *made),
        kernels=tuple(named.values()),
        steps=steps,
    )


def _written(target: ProgramBuffer, taken: Container[str]) -> ProgramBuffer:
    """A buffer for what an input holds in the end, in its memory."""
    name = f"{target.name}_written"
    while name in taken:
        name += "_"
    return replace(target, name=name, storage=SharedStorage(target.name))


def _launch(copy: CopyBack, written: Buffer, kernels: SharedKernels) -> Launch:
    source = kernels.buffers[copy.source.buffer]
    ranges = tuple(Var(f"i{axis}", size) for axis, size in enumerate(source.layout.size))
    value = Load(source.name, [var.expr for var in ranges], source.dtype)
    node = node_of(0, Definition((written,), Pointwise(ranges, value)))
    assert node is not None, "it is a loop"
    built = kernels.build(group_of(node), [written.name])
    return Launch(kernels.name(built.kernel), built.buffers, built.symbols, offsets=built.offsets)


def _steps(
    steps: Sequence[Step],
    copies: Sequence[CopyBack],
    made: Sequence[ProgramBuffer],
    launches: Sequence[Launch],
) -> Iterator[Step]:
    """The steps with launches where the first of the copies was."""
    known = {id(copy) for copy in copies}
    for step in steps:
        if step is copies[0]:
            yield from (Allocate(each.name) for each in made)
            yield from launches
            yield from (Free(each.name) for each in made)
        if id(step) not in known:
            yield step
