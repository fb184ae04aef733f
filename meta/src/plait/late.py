"""Backwards are compiled when they are first called, for the gradients that are given then.

A model returns more than its loss, and most of that gets no gradient: what is compiled is the part
of the backward that runs. A call that no backward follows costs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from plait.record import CompiledGraph, Outcome, Runner, StageFailure
from plait.replay import protect
from plait.stages import Stages, StageStopped

if TYPE_CHECKING:
    from plait.codegen import Built
    from plait_fx_passes import AtenGraph


class Keeper(Protocol):
    """What becomes of graphs that are compiled late."""

    def keep(self, compiled: CompiledGraph) -> None:
        """Put the record of one into the report."""

    def accept_failure(self, name: str, stopped: StageStopped) -> tuple[StageFailure, str]:
        """Why the graph runs eagerly instead; raises where the user asked for that."""


class LateCompiler:
    """Compiles flat graphs at their first call.

    Args:
        stages: of the graph that they belong to.
        generate: makes code for one.
        keeper: gets the records.
    """

    def __init__(
        self, stages: Stages, generate: Callable[[AtenGraph, Stages], Built], keeper: Keeper
    ) -> None:
        self._stages = stages
        self._generate = generate
        self._keeper = keeper
        self._count = 0

    def compile(self, aten: AtenGraph) -> Runner:
        """Code for a graph; its ATen kernels where a stage refuses it."""
        self._count += 1
        stages = self._stages.part("backward" if self._count == 1 else f"backward-{self._count}")
        stages.keep(aten=aten)
        module = aten.module()
        try:
            built = self._generate(aten, stages)
        except StageStopped as stopped:
            failure, reason = self._keeper.accept_failure(stages.name, stopped)
            made = stages.finish(module, Outcome.EAGER, module, failure=failure, reason=reason)
        else:
            run = protect(built.run, lambda program: program, module, stages.name)
            made = stages.finish(module, Outcome.COMPILED, run)
        self._keeper.keep(made)
        return made.run
