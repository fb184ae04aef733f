"""The compiler after tracing, as one flat function of named stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from plait.options import CompileOptions
from plait_utils import DiskCache, PlaitError, Profile, dump_folder, get_logger

if TYPE_CHECKING:
    from plait_fx_passes import AtenGraph
    from plait_ir_lowering import Graph
    from plait_scheduler import Program


@dataclass
class CompiledGraph:
    """One compiled graph, with what each stage made of it."""

    name: str
    graph_module: torch.fx.GraphModule
    aten: AtenGraph | None = None
    loops: Graph | None = None
    program: Program | None = None
    executable: Any = None
    externals: dict[str, int] = field(default_factory=dict)
    note: str | None = None
    """Why the graph does not run as compiled code, if it does not."""


def compile_graph(
    record: CompiledGraph,
    example_inputs: Sequence[torch.Tensor],
    *,
    target: str,
    options: CompileOptions,
    cache: DiskCache,
    profile: Profile,
) -> Callable[..., Any]:
    """Compile a captured graph; each stage's value goes into `record`.

    Args:
        target: "plait" (by the inputs' device), "python" or "triton".
    Raises what the stages raise.
    """
    import plait_fx_passes as fx_passes
    import plait_ir_lowering as ir_lowering
    import plait_scheduler as scheduler

    dumps = dump_folder(record.name)
    dumps.write("1_captured.py", record.graph_module.code)
    with profile.phase("aten"):
        record.aten = fx_passes.to_aten(record.graph_module, example_inputs)
    with profile.phase("passes"):
        passes = fx_passes.DEFAULT_PASSES
        if options.numeric_rewrites:
            passes = (*passes, *fx_passes.NUMERIC_PASSES)
        record.aten = fx_passes.run_passes(record.aten, passes, verify_each=options.verify)
    dumps.write("2_aten.txt", fx_passes.print_aten(record.aten) if dumps.path else "")
    with profile.phase("lower"):
        record.loops = ir_lowering.lower(record.aten.graph, name=record.name)
        record.externals = ir_lowering.external_ops(record.loops)
    with profile.phase("schedule"):
        record.program = scheduler.schedule(record.loops)
        if options.verify:
            scheduler.verify_program(record.program)
    dumps.write("4_program.txt", scheduler.print_program(record.program) if dumps.path else "")
    record.executable = build_program(record.program, target, cache, profile)
    source = getattr(record.executable, "source", None)
    dumps.write("5_source.cpp", source or "")
    return fx_passes.wrap_runtime(record.aten, record.executable)


def build_program(program: Program, target: str, cache: DiskCache, profile: Profile) -> Any:
    """The program as an executable of the backend for its device."""
    devices = {buffer.device.type for buffer in program.buffers}
    if target == "python":
        return build_python(program)
    if target == "triton" or "cuda" in devices:
        from plait.errors import BackendError

        try:
            import plait_triton_codegen
        except ImportError as error:
            raise BackendError(
                "programs for GPUs need plait's Triton backend",
                hint="Install it: pip install 'plait[triton]'.",
            ) from error
        builder = getattr(plait_triton_codegen, "build", None)
        if builder is None:
            raise BackendError("this version of plait-triton-codegen builds no programs")
        return builder(program, cache=cache, profile=profile)
    import plait_cpp_codegen

    return plait_cpp_codegen.build(program, cache=cache, profile=profile)


def build_python(program: Program) -> Any:
    """The program as readable Python over ATen."""
    import plait_scheduler as scheduler

    run = scheduler.load_python(scheduler.render_python(program))
    return lambda *inputs: run(inputs)


def explain_failure(record: CompiledGraph, error: Exception) -> None:
    """Say, once for each graph, that it runs eagerly and why."""
    words = str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
    record.note = words
    get_logger("compile").warning("%s runs eagerly: %s", record.name, words)
