"""The compiler: one flat function of named stages.

    captured ─aten─▶ ATen graph ─passes─▶ ATen graph ─lower─▶ loop IR ─schedule─▶ Program
             ─codegen, build─▶ code

The tracer captures graphs and calls `compile_graph` for each. Every stage is a function
of a sibling package; this file only connects them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.codegen import Target, build
from plait.options import CompileOptions
from plait.record import CompiledGraph, HostCode, Outcome
from plait.replay import protect
from plait.stages import Stages

if TYPE_CHECKING:
    import torch
    from torch import fx


def compile_graph(
    captured: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    stages: Stages,
    target: Target,
    options: CompileOptions,
) -> CompiledGraph:
    """Compile one captured graph for inference with static shapes.

    Args:
        captured: a torch-level graph; it is not changed.
        example_inputs: a real or fake tensor for each placeholder.
        stages: runs each stage: times, checks, dumps and keeps what it made.
        target: which code to generate.
        options: what the caller of `plait.compile` chose.

    Raises what a stage raises as `StageStopped`, which says which one.
    """
    with stages.profile.phase("import"):
        import plait_fx_passes as fx_passes
        import plait_ir_lowering as ir_lowering
        import plait_scheduler as scheduler

    stages.dump("captured.py", lambda: captured.code)

    with stages.stage("aten"):
        recorded = fx_passes.to_aten(captured, example_inputs)
    stages.check("aten", lambda: fx_passes.verify(recorded))
    stages.dump("aten.txt", lambda: fx_passes.print_aten(recorded))

    with stages.stage("passes"):
        chosen = fx_passes.NUMERIC_PASSES if options.numeric_rewrites else fx_passes.DEFAULT_PASSES
        aten = fx_passes.run_passes(
            recorded,
            chosen,
            disabled=options.disabled & {each.name for each in chosen},
            verify_each=options.verify,
        )
    stages.keep(aten=aten)
    stages.dump("aten-optimized.txt", lambda: fx_passes.print_aten(aten))

    with stages.stage("lower"):
        loops = ir_lowering.lower(aten.graph, name=stages.name)
    stages.check("lower", lambda: ir_lowering.verify(loops))
    stages.keep(loops=loops)
    stages.dump("loops.txt", lambda: ir_lowering.print_graph(loops))

    with stages.stage("schedule"):
        schedule = scheduler.plan(loops, options=options.scheduler_options())
    stages.keep(schedule=schedule)
    stages.dump("program.txt", lambda: scheduler.print_program(schedule.program))
    stages.dump("decisions.txt", schedule.explain)
    stages.dump("host.py", lambda: scheduler.render_python(schedule.program))

    with stages.stage("codegen"):
        built = build(schedule.program, target, options, stages.profile)
        run = protect(
            built.run, lambda program: fx_passes.wrap_runtime(aten, program), captured, stages.name
        )
    code = HostCode(
        built.backend, built.source, built.language, built.fallback_reason, built.cache_hit
    )
    stages.keep(code=code)
    stages.dump(f"program.{built.extension}", lambda: built.source or "")

    return stages.finish(captured, Outcome.COMPILED, run)
