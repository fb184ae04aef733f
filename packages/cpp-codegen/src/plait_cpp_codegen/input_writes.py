"""Which steps of a program for a GPU change inputs, and what comes before the first of them.

A call that raises has changed nothing, since eager may run in its place. So all that can fail for
want of memory, or for a wrong index, comes before the first step that changes an input and that
nothing puts back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from plait_cpp_codegen.blocks import memory_of, planned
from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_scheduler import (
    Access,
    Allocate,
    ArenaPlan,
    CallExtern,
    CopyBack,
    InputStorage,
    Launch,
    OnError,
    OutputStorage,
    Program,
    Step,
)
from plait_utils import dataclass


class InputWrites:
    """Which inputs each step of a program writes to."""

    def __init__(self, program: Program) -> None:
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self._steps = program.steps
        undone = (step.launch for step in program.steps if isinstance(step, OnError))
        self._params = {kernel.name: kernel.params for kernel in program.kernels}
        self._undone = frozenset(name for launch in undone for name in self._written(launch))

    def of(self, step: Step) -> frozenset[int]:
        """Their positions."""
        names: tuple[str | None, ...] = ()
        match step:
            case CopyBack(target):
                names = (target,)
            case CallExtern() if step.out_variant:
                names = step.results
            case Launch():
                names = self._written(step)
        return frozenset(self._inputs(name for name in names if name is not None))

    def is_final(self, step: Step) -> bool:
        """Whether a step changes an input that nothing puts back where a later one fails."""
        is_put_back = isinstance(step, Launch) and self._undone.issuperset(self._written(step))
        return bool(self.of(step)) and not is_put_back

    def first(self) -> int | None:
        """The first step of the program that is final; None where none is."""
        return next((at for at, step in enumerate(self._steps) if self.is_final(step)), None)

    def _written(self, launch: Launch) -> tuple[str, ...]:
        given = zip(self._params[launch.kernel], launch.buffers, strict=True)
        return tuple(name for param, name in given if param.access is not Access.READ)

    def memory(self, name: str) -> str:
        """The buffer in whose memory a buffer lies."""
        return memory_of(self.buffers, name)

    def _inputs(self, names: Iterable[str]) -> Iterator[int]:
        for name in names:
            storage = self.buffers[self.memory(name)].storage
            if isinstance(storage, InputStorage):
                yield storage.position


@dataclass(frozen=True, slots=True)
class BeforeWrites:
    """What a program needs behind the first final step, to be there before it."""

    first: int | None
    """That step; None where no input is changed."""
    late: ArenaPlan
    """Where temporaries that begin behind it lie, in a block that they share."""
    rooms: Mapping[int, str]
    """Launches behind it of kernels that ask for memory of their own, with what that is called."""


def before_writes(
    program: Program,
    blocks: Collection[str],
    placed: Collection[str],
    asking: Collection[str],
    checking: Collection[str],
) -> BeforeWrites:
    """What comes before the first final step of a program.

    Args:
        blocks: temporaries that are allocated where they begin.
        placed: those that have memory when the program starts.
        asking: the kernels that ask for memory of their own.
        checking: the kernels that check indices.

    Raises UnsupportedProgramError where a step behind that one may fail.
    """
    first = InputWrites(program).first()
    behind = [] if first is None else [*enumerate(program.steps)][first + 1 :]
    results = {each.name for each in program.buffers if isinstance(each.storage, OutputStorage)}
    for _, step in behind:
        allocates = isinstance(step, Allocate) and step.buffer in results.difference(placed)
        checks = isinstance(step, Launch) and step.kernel in checking
        if allocates or checks or isinstance(step, CallExtern):
            raise UnsupportedProgramError("a step that may fail after inputs are changed")
    late = {step.buffer for _, step in behind if isinstance(step, Allocate)}.intersection(blocks)
    launches = [at for at, each in behind if isinstance(each, Launch) and each.kernel in asking]
    rooms = {at: f"room{number}" for number, at in enumerate(launches)}
    return BeforeWrites(first, planned(program, late), rooms)
