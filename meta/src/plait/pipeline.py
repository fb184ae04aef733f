"""The compiler: a flat function of named stages for inference, and one for training.

    captured ─aten─▶ ATen graph ─passes─▶ ATen graph ─lower─▶ loop IR ─schedule─▶ Program
             ─codegen, build─▶ code

    captured ─joint─▶ joint graph ─passes─▶ joint graph ─partition─▶ forward and backward,
             each ─lower─▶ ... ─▶ code

A program that differentiates inside, as a whole training step does, is one graph with its
backward, and goes the first way.

The tracer captures graphs and calls `compile_graph` for each. Every stage is a function
of a sibling package; this file only connects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from plait.attention import with_attention_calls, with_kept_attention
from plait.codegen import Built, Target, build
from plait.collectives import (
    between_collectives,
    calls_collectives,
    in_order,
    is_in_parts,
    written_last,
)
from plait.computed import computed
from plait.freezing import frozen
from plait.kernel_products import (
    NOTHING_BY_RULE,
    TimedProducts,
    may_time_products,
    timed_products,
)
from plait.late import Keeper, LateCompiler, may_compile_ahead
from plait.options import CompileOptions
from plait.passes import before_grad, check_outputs, run_all, without_before_grad
from plait.record import CompiledGraph, HostCode, Outcome, Runner
from plait.reduction_splits import TimedSplit, goals_of, may_time_splits, timed_splits
from plait.repeating import Repeated
from plait.replay import at_user_lines, protect
from plait.sizes_at_hand import sizes_at_hand
from plait.stages import Stages
from plait.symbolic import has_open_sizes
from plait.trained import Trained
from plait.user_frames import in_user_frames
from plait.variants import BY_RULE, may_vary, varied_program
from plait.writing import is_on_cpu, writes_inputs

if TYPE_CHECKING:
    import torch
    from torch import fx

    from plait_fx_passes import AtenGraph, JointGraph, Known, Piece, WaypointError

HIDDEN = "hidden_results"
"""Under which the placeholders of a part of a graph note that other parts alone are given its
results."""


def compile_graph(
    captured: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    stages: Stages,
    target: Target,
    options: CompileOptions,
    writes: Callable[[], int] = lambda: 0,
) -> CompiledGraph:
    """Compile one captured graph for inference.

    Args:
        captured: a torch-level graph; it is not changed.
        example_inputs: a real or fake tensor for each placeholder. Symbolic sizes stay open:
            what the stages ask of them is noted in their environment.
        stages: runs each stage: times, checks, dumps and keeps what it made.
        target: which code to generate.
        options: what the caller of `plait.compile` chose.
        writes: a number that is another where frozen inputs may have been written to without
            being counted on them.

    Raises what a stage raises as `StageStopped`, which says which one.
    """
    with stages.profile.phase("import"):
        import plait_fx_passes as fx_passes

    with stages.stage("aten"):
        flat = fx_passes.flattened(captured, example_inputs)
    if flat is not None:
        wrappers = flat.writes
        made = compile_graph(
            flat.program,
            flat.examples,
            stages=stages,
            target=target,
            options=replace(options, never_slower=False),  # wrappers are no part of that
            writes=lambda: wrappers.number,
        )
        return replace(made, run=flat.wrap(made.run), is_wrapped=True)
    program = before_grad(captured, stages, options)
    stages.dump("captured.py", lambda: program.code)

    fused = with_attention_calls(program, stages, options)
    fused = before_grad(fused, stages, options, "before_grad_last")
    with stages.stage("aten"):
        recorded = fx_passes.to_aten(fused, example_inputs, decompositions=options.decompositions())
        if has_open_sizes(example_inputs):
            fx_passes.refuse_open_surroundings(recorded)
        check_outputs(captured, recorded, options)
    stages.check("aten", lambda: fx_passes.verify(recorded))
    stages.dump("aten.txt", lambda: fx_passes.print_aten(recorded))
    if options.freeze:
        recorded = frozen(recorded, program)

    return _compiled(recorded, captured, stages, target, options, writes)


def _compiled(
    recorded: AtenGraph,
    captured: fx.GraphModule,
    stages: Stages,
    target: Target,
    options: CompileOptions,
    writes: Callable[[], int] = lambda: 0,
) -> CompiledGraph:
    """What runs a recorded graph that needs no gradients from outside."""
    import plait_fx_passes as fx_passes

    aten = in_order(_improved(recorded, stages, target, options), stages, options)
    # What is compared must not have changed its inputs already.
    whole = not (options.verify or aten.frozen or calls_collectives(aten))
    users = fx_passes.users_in_place(aten) if whole else None
    aten = aten if users is None else users.graph
    stages.keep(aten=aten)
    direct = not options.verify and writes_inputs(aten, target, options)
    written = written_last(aten, fx_passes.writable(aten)) if direct else {}
    if users is not None:
        written = {result: n for result, n in written.items() if result not in users.written}
    stages.keep(written=written, is_wrapped=users is not None)
    program = _without_frozen(aten, stages, target, options, written, writes)

    def wrap(program: Runner) -> Runner:
        given = program if users is None else users.wrap(program, written)
        return fx_passes.wrap_runtime(aten, given, written)

    run = protect(
        program,
        wrap,
        captured.graph,
        stages.failures(),
        at_user_lines(captured),
    )
    if whole and users is None and fx_passes.is_direct(aten, recording=False):
        setattr(run, "repeated", Repeated(program))  # noqa: B010  # for mypy
    run = _compared(fx_passes.note_reads(run, aten), captured, recorded, stages, options)
    if options.never_slower and not options.verify and not has_open_sizes(aten.example_inputs):
        from plait.racing import raced

        run, race = raced(run, aten, captured, stages.name)
        stages.keep(race=race)
    return stages.finish(captured, Outcome.COMPILED, run)


def _without_frozen(
    aten: AtenGraph,
    stages: Stages,
    target: Target,
    options: CompileOptions,
    written: Mapping[int, int],
    writes: Callable[[], int],
) -> Runner:
    """Code for a graph; what follows from its frozen inputs alone is held beside it."""
    import plait_fx_passes as fx_passes

    split = None
    if aten.frozen:
        with stages.stage("freeze"):
            split = fx_passes.split_frozen(aten)
    if split is None:
        return _generated_and_compared(aten, "", stages, target, options, written).run
    stages.check("freeze", lambda: fx_passes.verify(split.program))
    stages.dump("frozen.txt", lambda: fx_passes.print_aten(split.program))
    stages.dump("frozen-values.py", lambda: split.constants.code)
    moved = split.written(written)
    run = _generated_and_compared(split.program, "", stages, target, options, moved).run
    return split.runner(run, writes)


def compile_training_graph(
    captured: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    stages: Stages,
    target: Target,
    options: CompileOptions,
    keeper: Keeper,
    known: Known | None = None,
) -> CompiledGraph:
    """Compile one captured graph for calls that need gradients, and its backward when it runs.

    Arguments and errors are those of :func:`compile_graph`; `keeper` gets what is compiled later,
    and `known` says what some placeholders hold of what the graph computes.
    """
    with stages.profile.phase("import"):
        import plait_fx_passes as fx_passes

    with stages.stage("joint"):
        flat = fx_passes.flattened(captured, example_inputs)
    if flat is not None:
        made = compile_training_graph(
            flat.program,
            flat.examples,
            stages=stages,
            target=target,
            options=options,
            keeper=keeper,
        )
        return replace(made, run=flat.wrap(made.run), is_wrapped=True)
    program = before_grad(captured, stages, options)
    stages.dump("captured.py", lambda: program.code)

    # Gradients that are differentiated themselves are the program's own: fused kernels have none.
    fused = with_attention_calls(program, stages, options)
    fused = before_grad(fused, stages, options, "before_grad_last")
    is_open = has_open_sizes(example_inputs)
    pieces: tuple[Piece, ...] = ()
    why: WaypointError | None = None
    recorded = None
    with stages.stage("joint"):
        try:
            recorded = _joint(fused, example_inputs, options)
        except fx_passes.WaypointError as error:
            pieces = fx_passes.in_pieces(program, example_inputs, error)
            why = error
        if recorded is not None:
            if is_open:
                fx_passes.refuse_open_surroundings(recorded.program)
            check_outputs(captured, recorded.program, options)
    if why is not None:
        from plait.piecewise import compile_pieces

        again = partial(
            compile_training_graph,
            target=target,
            options=without_before_grad(options),
            keeper=keeper,
        )
        return compile_pieces(captured, pieces, why, stages, again, keeper)
    if recorded is None:
        return compile_graph(
            captured, example_inputs, stages=stages, target=target, options=options
        )
    stages.check("joint", lambda: fx_passes.verify(recorded.flat()))
    stages.dump("joint.txt", lambda: fx_passes.print_aten(recorded.flat()))
    if not recorded.tangents:  # a training step: the program itself differentiates
        step = recorded.program
        if known is not None:
            joint = recorded.replace_graph(
                _improved(recorded.flat(), stages, target, options).graph
            )
            step = known.used_in(joint).program
        return _compiled(step, captured, stages, target, options)

    joint = recorded.replace_graph(_improved(recorded.flat(), stages, target, options).graph)
    if any(HIDDEN in node.meta for node in captured.graph.find_nodes(op="placeholder")):
        joint = joint.hidden()
    if known is not None:
        joint = known.used_in(joint)
    joint = with_kept_attention(joint, stages, options)
    with stages.stage("partition"):
        parts = fx_passes.partition(joint, options.memory_budget)
    stages.check("partition", lambda: fx_passes.verify(parts.forward))
    stages.check("partition", lambda: fx_passes.verify(parts.backward))

    parts = replace(parts, forward=in_order(parts.forward, stages, options))
    stages.dump("saved.txt", lambda: fx_passes.print_saved(parts))
    stages.keep(aten=parts.forward, partition=parts)
    # What is compared must not have changed its inputs already.
    direct = not options.verify and writes_inputs(parts.forward, target, options)
    written = (
        written_last(parts.forward, fx_passes.writable_in_training(joint, parts)) if direct else {}
    )
    late = late_compiler(stages, target, options, keeper)
    meanwhile = None
    if len(joint.tangents) == 1 and not is_open and may_compile_ahead(parts, target, options):
        whole = fx_passes.whole_backward(parts)
        meanwhile = partial(late.compile_ahead, whole)
    forward = _generated_and_compared(
        parts.forward, "forward ", stages, target, options, written, meanwhile
    )
    with stages.stage("partition"):
        plan = fx_passes.plan_of(joint, parts)
        trained = Trained(plan, fx_passes.Graphs(joint, parts, program), written, late)
        stages.keep(trained=trained)
        run = protect(
            forward.run,
            lambda forward: fx_passes.wrap_training(
                joint,
                parts,
                forward,
                None,
                program,
                compile_part=late.compile,
                compile_gradients=None if is_open else late.gradients,
                eager=in_user_frames(captured),
                written=written,
                plan=plan,
                note=trained.note,
            ),
            captured.graph,
            stages.failures(),
            at_user_lines(captured),
        )
    run = _compared(run, captured, recorded, stages, options)
    late.begin(parts.backward)
    if options.background:  # this is the thread that has time to wait
        late.wait()
    return stages.finish(captured, Outcome.COMPILED, run)


def late_compiler(
    stages: Stages, target: Target, options: CompileOptions, keeper: Keeper
) -> LateCompiler:
    """What compiles the backwards of a graph, and its gradients that are differentiated.

    Args:
        stages: of the graph.
        target: which code to generate.
        options: what the caller of `plait.compile` chose.
        keeper: gets what is compiled.
    """
    return LateCompiler(
        stages,
        lambda graph, part: _generated_and_compared(
            in_order(graph, part, options), "backward ", part, target, options
        ),
        lambda gradients, part: compile_training_graph(
            gradients.program,
            gradients.examples,
            stages=part,
            target=target,
            options=without_before_grad(options),
            keeper=keeper,
            known=gradients.known,
        ),
        keeper,
    )


def _joint(
    captured: fx.GraphModule, example_inputs: Sequence[torch.Tensor], options: CompileOptions
) -> JointGraph | None:
    """The joint graph; None where gradients flow through views of inputs at most."""
    import plait_fx_passes as fx_passes

    try:
        decompositions = options.decompositions()
        return fx_passes.to_joint(captured, example_inputs, decompositions=decompositions)
    except fx_passes.NoGradientsError:
        return None


def _improved(
    recorded: AtenGraph, stages: Stages, target: Target, options: CompileOptions
) -> AtenGraph:
    """After the passes: plait's, and the user's before and behind them."""
    with stages.stage("passes"):
        passes = options.passes(computed if target is Target.BY_DEVICE else None)
        return run_all(recorded, passes, stages, options)


def _generated(
    aten: AtenGraph,
    stages: Stages,
    target: Target,
    options: CompileOptions,
    written: Mapping[int, int] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Built:
    """Code for a functional ATen graph; `written` are results that it writes over inputs, and
    `meanwhile` is called while a C++ compiler runs. Where the graph calls collectives, that is code
    for each part, which has a record of its own."""
    if is_in_parts(aten, options):
        return between_collectives(
            aten,
            stages,
            written or {},
            lambda part, of_part, over: _generated(part, of_part, target, options, over),
        )
    with stages.profile.phase("import"):
        import plait_ir_lowering as ir_lowering
        import plait_scheduler as scheduler

    variant, varied = BY_RULE, None
    if target is Target.BY_DEVICE and may_vary(aten, options, written or {}):
        with stages.stage("tune"):
            varied = varied_program(aten, stages, options)
            variant = varied.variant
    with stages.stage("lower"):
        chosen = options.lowering_options(variant)
        loops = ir_lowering.lower(aten.graph, options=chosen, name=stages.name, mutations=written)
    stages.check("lower", lambda: ir_lowering.verify(loops))
    stages.keep(loops=loops)
    stages.dump("loops.txt", lambda: ir_lowering.print_graph(loops))

    with stages.stage("schedule"):
        # What is compared must not have changed its inputs already; nor what runs out of memory
        # halfway, as programs of GPUs may, and is made up for by ATen's kernels.
        scratch = aten.scratch if not options.verify and is_on_cpu(aten, target) else ()
        planned = options.scheduler_options(variant, scheduler.device_limits(loops))
    products: tuple[TimedProducts, ...] = ()
    if may_time_products(loops, target, options):
        with stages.stage("tune"):
            products = timed_products(loops, planned, options)
            own = ",".join(name for each in products if each.is_own for name in each.names)
            planned = replace(planned, kernel_products=own, **NOTHING_BY_RULE)
    splits: tuple[TimedSplit, ...] = ()
    if may_time_splits(loops, target, options):
        with stages.stage("tune"):
            splits = timed_splits(loops, planned, options)
            planned = replace(planned, split_goals=goals_of(splits))
    with stages.stage("schedule"):
        schedule = scheduler.plan(loops, options=planned, scratch=scratch)
    stages.keep(schedule=schedule)
    stages.dump("program.txt", lambda: scheduler.print_program(schedule.program))
    stages.dump("decisions.txt", schedule.explain)
    stages.dump("host.py", lambda: scheduler.render_python(schedule.program))

    with stages.stage("codegen"):
        built = build(
            schedule.program,
            target,
            options,
            stages.profile,
            meanwhile or stages.meanwhile,
            stages.progress.built,
            lambda source: stages.dump("program.triton.py", lambda: source),
            lambda: sizes_at_hand(schedule.program, aten.example_inputs),
        )
    stages.keep(
        code=HostCode(
            *(built.backend, built.source, built.language, built.fallback_reason),
            *(built.cache_hit, built.library, (*products, *splits, *built.tuned), varied),
            graphs=built.graphs,
            python_reason=built.python_reason,
            torch_kernels=built.torch_kernels,
            unaligned=built.unaligned,
        )
    )
    stages.dump(f"program.{built.extension}", lambda: built.source or "")
    return replace(built, overwritten=schedule.program.overwritten)


def _generated_and_compared(
    aten: AtenGraph,
    kind: str,
    stages: Stages,
    target: Target,
    options: CompileOptions,
    written: Mapping[int, int] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Built:
    """Code for a functional ATen graph, compared with ATen's kernels where that is asked for."""
    if options.user_passes.after_grad:
        with stages.stage("passes"):
            chosen = options.user_passes.after_grad
            aten = run_all(aten, chosen, stages, options, "aten-after-grad")
    built = _generated(aten, stages, target, options, written or {}, meanwhile)
    if not options.verify:
        return built
    from plait.verifying import FlatVerifier

    again = stages.part("verify")
    verifier = FlatVerifier(
        options.verify,
        stages.verification(),
        lambda graph: _generated(graph, again, target, options).run,
    )
    return replace(built, run=verifier.wrap(built.run, aten, kind))


def _compared(
    run: Runner,
    captured: fx.GraphModule,
    recorded: AtenGraph | JointGraph,
    stages: Stages,
    options: CompileOptions,
) -> Runner:
    """A compiled graph, compared with the captured one where that is asked for."""
    if not options.verify:
        return run
    from plait.verifying import blame_stage, verified_graph

    blame = partial(blame_stage, captured, recorded, options)
    told, eager = stages.verification(), at_user_lines(captured)
    return verified_graph(run, captured, options.verify, told, blame, eager)
