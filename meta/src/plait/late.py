"""Backwards are compiled when they are first called, for the gradients that are given then.

A model returns more than its loss, and most of that gets no gradient: what is compiled is the part
of the backward that runs. Where one result has a gradient that part is the whole backward, which a
thread begins to compile while the C++ compiler works on the forward. A backward that is itself
differentiated is a program with a backward of its own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from plait.budget import TimeIsUp
from plait.codegen import Target
from plait.record import CompiledGraph, HostCode, Outcome, Runner, StageFailure
from plait.replay import protect, raise_lost
from plait.stages import Stages, StageStopped
from plait.writing import is_on_cpu
from plait_utils import get_logger, postponed_collections
from plait_utils.background import start_in_background

if TYPE_CHECKING:
    import torch

    from plait.background import Later
    from plait.codegen import Built
    from plait.options import CompileOptions
    from plait_fx_passes import AtenGraph, Conditions, GradientProgram, Partition


_Condition: TypeAlias = "Callable[[Sequence[torch.Tensor]], bool]"


class Keeper(Protocol):
    """What becomes of graphs that are compiled late."""

    def keep(self, compiled: CompiledGraph) -> None:
        """Put the record of one into the report."""

    def accept_failure(self, name: str, stopped: StageStopped) -> tuple[StageFailure, str]:
        """Why the graph runs eagerly instead; raises where the user asked for that."""

    def compiling(self, stages: Stages) -> AbstractContextManager[None]:
        """What is around each compilation: its time is limited, and shown."""

    def limits(self) -> Callable[[], AbstractContextManager[None]]:
        """The limits of the compilation that this thread is at, for another one that helps."""

    def later(self) -> Later | None:
        """What has graphs compiled in a thread, where calls are not to wait."""


class _Ahead:
    """A graph that a thread compiles."""

    def __init__(self, aten: AtenGraph) -> None:
        self.aten = aten
        self.ended = threading.Event()
        self.made: CompiledGraph | None = None
        """None until it is compiled, or where it could not be."""

    def is_for(self, aten: AtenGraph) -> bool:
        """Whether that is this graph, to be compiled to the same code."""
        return aten.graph is self.aten.graph and aten.scratch == self.aten.scratch


class LateCompiler:
    """Compiles flat graphs at their first call.

    Args:
        stages: of the graph that they belong to.
        generate: makes code for one.
        differentiable: compiles the program of gradients for calls that need gradients.
        keeper: gets the records.
    """

    def __init__(
        self,
        stages: Stages,
        generate: Callable[[AtenGraph, Stages], Built],
        differentiable: Callable[[GradientProgram, Stages], CompiledGraph],
        keeper: Keeper,
    ) -> None:
        self._stages = stages
        self._generate = generate
        self._differentiable = differentiable
        self._keeper = keeper
        self._ahead: _Ahead | None = None
        self._counts: Counter[str] = Counter()
        self._conditions: Conditions | None = None
        self._libraries: list[tuple[Runner, HostCode]] = []

    def begin(self, backward: AtenGraph) -> None:
        """From now on the graph is called, for inputs of other sizes too where these are open."""
        from plait_fx_passes import Conditions

        self._conditions = Conditions(backward)

    def compile_ahead(self, aten: AtenGraph) -> None:
        """Compile a graph in a thread: who asks for it later has less to wait for, or nothing.

        Of a graph of static sizes. It is called once, before the others.
        """
        if self._ahead is None:
            self._ahead = _Ahead(aten)
            work = partial(self._compile_ahead, self._ahead, self._keeper.limits())
            if start_in_background(work, "plait-backward-build") is None:
                self._ahead.ended.set()

    def _compile_ahead(
        self, ahead: _Ahead, limits: Callable[[], AbstractContextManager[None]]
    ) -> None:
        try:
            with limits():
                ahead.made = self._compiled(ahead.aten, self._part("backward"))
        except TimeIsUp as error:
            get_logger("compile").info("the backward is not compiled ahead: %s", error)
        finally:  # where it failed, who asks for it is told
            ahead.ended.set()

    def wait(self) -> None:
        """Until what is compiled ahead is there, or is known not to come."""
        if self._ahead is not None:
            self._ahead.ended.wait()

    def compile(self, aten: AtenGraph) -> Runner:
        """Code for a graph; its ATen kernels where a stage refuses it, and while a thread compiles
        it where calls are not to wait."""
        made = self._made_ahead(aten)
        later = None if made else self._keeper.later()
        if later is not None:
            from plait.background import Background
            from plait_fx_passes import runner

            # Nobody would ask again for what computes in the memory of its arguments.
            own = replace(aten, scratch=())
            stages = self._part("backward")
            work = later.work(stages.name, lambda: self._kept(own, stages))
            return Background(work, runner(aten))
        if made is None:
            return self._kept(aten, self._part("backward"))
        self._keep(made)
        return made.run

    def whole(self) -> CompiledGraph | None:
        """What the thread has made that compiles ahead, once it has ended; None where there is no
        such thread, or nothing came of it."""
        self.wait()
        return None if self._ahead is None else self._ahead.made

    def code_of(self, run: Runner) -> HostCode | None:
        """The code of what `compile` has returned; None where a stage refused the graph."""
        return next((code for known, code in self._libraries if known is run), None)

    def _kept(self, aten: AtenGraph, stages: Stages) -> Runner:
        made = self._compiled_or_eager(aten, stages)
        self._keep(made)
        return made.run

    def _keep(self, made: CompiledGraph) -> None:
        if made.code is not None and made.outcome is Outcome.COMPILED:
            self._libraries.append((made.run, made.code))
        self._keeper.keep(made)

    def _made_ahead(self, aten: AtenGraph) -> CompiledGraph | None:
        """What the thread has made of this graph, as soon as it has ended."""
        ahead = self._ahead
        if ahead is None or not ahead.is_for(aten):
            return None
        ahead.ended.wait()
        return ahead.made

    def _compiled_or_eager(self, aten: AtenGraph, stages: Stages) -> CompiledGraph:
        from plait_fx_passes import runner

        try:
            with self._keeper.compiling(stages):
                return self._compiled(aten, stages)
        except StageStopped as stopped:
            failure, reason = self._keeper.accept_failure(stages.name, stopped)
            kernels = runner(aten)
            return stages.finish(aten, Outcome.EAGER, kernels, failure=failure, reason=reason)

    @postponed_collections()
    def _compiled(self, aten: AtenGraph, stages: Stages) -> CompiledGraph:
        """Code for a graph. Raises StageStopped where a stage refuses it."""
        from plait_fx_passes import consumed_by, runner

        stages.keep(aten=aten)
        kernels = runner(aten)
        built = self._generate(aten, stages)
        fits = self._condition(aten, stages)
        run = _where(fits, copying(built.run, built.overwritten), kernels)
        run = protect(run, lambda program: program, aten.graph, stages.failures(), kernels)
        if built.overwritten:
            consuming = _where(fits, telling(built.run, stages.name), kernels)
            run = consumed_by(run, consuming, built.overwritten)
        return stages.finish(aten, Outcome.COMPILED, run)

    def _condition(self, aten: AtenGraph, stages: Stages) -> _Condition | None:
        """Whether what the stages of a graph noted about sizes holds; None if nothing was."""
        if self._conditions is None:
            return None
        with stages.stage("sizes"):
            return self._conditions.check(aten)

    def gradients(self, gradients: GradientProgram) -> Runner | None:
        """What runs the program of gradients that are differentiated themselves; None where a
        stage refuses it."""
        stages = self._part("gradients")
        try:
            with self._keeper.compiling(stages):
                made = self._differentiable(gradients, stages)
        except StageStopped as stopped:
            failure, reason = self._keeper.accept_failure(stages.name, stopped)
            program = gradients.program
            made = stages.finish(
                program, Outcome.EAGER, program.forward, failure=failure, reason=reason
            )
            self._keeper.keep(made)
            return None
        self._keeper.keep(made)
        return made.run

    def _part(self, kind: str) -> Stages:
        self._counts[kind] += 1
        count = self._counts[kind]
        return self._stages.part(kind if count == 1 else f"{kind}-{count}")


def may_compile_ahead(parts: Partition, target: Target, options: CompileOptions) -> bool:
    """Whether a thread may compile a backward: it runs no code of the user's, asks no device for
    anything, and there is a C++ compiler to be waited for and nothing to be timed."""
    runs_users = options.user_passes.after_grad or options.verify or options.strict
    if options.cpp_options().autotune:
        return False  # what is timed is not to share the machine with it
    on_cpu = is_on_cpu(parts.forward, target) and is_on_cpu(parts.backward, target)
    return on_cpu and target is Target.BY_DEVICE and not runs_users


def _where(fits: _Condition | None, run: Runner, kernels: Runner) -> Runner:
    """The program where a condition on its inputs holds; ATen's kernels elsewhere."""
    if fits is None:
        return run
    return lambda *inputs: run(*inputs) if fits(inputs) else kernels(*inputs)


def copying(run: Runner, overwritten: Collection[int]) -> Runner:
    """The program, which gets copies of the inputs that it overwrites."""
    if not overwritten:
        return run

    def with_copies(*inputs: Any) -> Any:
        return run(*(_copy(each) if n in overwritten else each for n, each in enumerate(inputs)))

    return with_copies


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)


def telling(run: Runner, name: str) -> Runner:
    """The program, whose errors are its own: nothing else can compute from what it overwrites."""

    def with_note(*inputs: Any) -> Any:
        try:
            return run(*inputs)
        except Exception as error:
            raise_lost(error, inputs, name)
            error.add_note(f"Plait: raised in {name}, which computes in memory that it frees.")
            raise

    return with_note
