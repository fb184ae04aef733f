"""A program through the packages, stage by stage, each stage's text and verifier checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from operators.texts import check_loops, check_scheduled
from torch import Tensor
from torch.utils._pytree import tree_leaves

from plait_cpp_codegen import build
from plait_fx_passes import (
    DEFAULT_PASSES,
    LAYOUT_PASSES,
    LOOP_PASSES,
    AtenGraph,
    run_passes,
    to_aten,
    wrap_runtime,
)
from plait_fx_passes import verify as verify_aten
from plait_ir_lowering import (
    Graph,
    external_ops,
    interpret,
    lower,
)
from plait_scheduler import (
    Program as Scheduled,
)
from plait_scheduler import (
    SchedulerOptions,
    load_python,
    plan,
    render_python,
)
from randomgraphs.program import Program

Runner = Callable[[], list[Any]]


@dataclass(frozen=True)
class Made:
    """What the stages made of a program."""

    program: Program
    aten: AtenGraph
    loops: Graph
    scheduled: Scheduled
    calls: dict[str, int]


def stages(program: Program) -> Made:
    """All but the code. Raises what a stage, a verifier or a parser raises."""
    recorded = to_aten(program.graph(), program.tensors())
    verify_aten(recorded)
    aten = run_passes(recorded, (*DEFAULT_PASSES, *LOOP_PASSES, *LAYOUT_PASSES), verify_each=True)
    loops = lower(aten.graph)
    check_loops(loops)
    scheduled = plan(loops, options=SchedulerOptions(**dict(program.options))).program
    check_scheduled(scheduled)
    return Made(program, aten, loops, scheduled, external_ops(loops))


def runner(made: Made, backend: str) -> Runner:
    """A call of the program with fresh inputs, by the code of one backend."""
    if backend == "cpp":
        executable = build(made.scheduled)
        if executable.source is None:
            raise RuntimeError(f"no C++: {executable.fallback_reason}")
        run: Callable[..., Any] = executable.run
    elif backend == "python":
        loaded = load_python(render_python(made.scheduled))
        run = lambda *inputs: loaded(inputs)  # noqa: E731  # as the other two are written
    elif backend == "interpreter":
        run = lambda *inputs: interpret(made.loops, inputs)  # noqa: E731  # as the other two are written
    else:
        run = torch.fx.GraphModule(torch.nn.Module(), made.aten.graph).forward
    whole = wrap_runtime(made.aten, run)

    def call() -> list[Any]:
        with torch.no_grad():
            given = made.program.tensors()
            copies = [each.clone() for each in given]
            results = tree_leaves(whole(*given))
            _unchanged(given, copies)
            return results

    return call


def _unchanged(given: list[Tensor], copies: list[Tensor]) -> None:
    for place, (one, other) in enumerate(zip(given, copies, strict=True)):
        if not bool(((one == other) | ((one != one) & (other != other))).all()):
            raise RuntimeError(f"input {place} was written to")
