"""The ways in which a program is compiled with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from plait_fx_passes import (
    AtenTraceError,
    GradientProgram,
    Known,
    NoGradientsError,
    note_reads,
    partition,
    run_passes,
    to_aten,
    to_joint,
    verify,
    wrap_runtime,
    wrap_training,
)

Program = Callable[..., object]
Way = Callable[[Program, Sequence[torch.Tensor]], "Compiled"]


@dataclass(frozen=True)
class Compiled:
    """A program, and what it says, once it has run, of the parts that run eagerly."""

    run: Program
    left: Callable[[], str] = str


class RefusedError(Exception):
    """The compiler says that it does not take the program, which then runs eagerly."""


def graph_of(program: Program, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """One call of the whole program as a torch-level graph."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"x{index}") for index in range(len(inputs))]
    graph.output(graph.call_function(program, tuple(placeholders)))
    return fx.GraphModule(nn.Module(), graph)


def through_joint_graph(program: Program, inputs: Sequence[torch.Tensor]) -> Compiled:
    """Both halves of the optimized joint graph, run by ATen's kernels; so too gradients that are
    differentiated, as programs of their own.

    Where autograd only sees views of inputs, there is one graph, and the views are taken outside.
    """
    left: list[str] = []
    run = _through_joint_graph(graph_of(program, inputs), inputs, None, left)
    return Compiled(run, lambda: "; ".join(left))


def _through_joint_graph(
    gm: fx.GraphModule, inputs: Sequence[torch.Tensor], known: Known | None, left: list[str]
) -> Program:
    try:
        recorded = to_joint(gm, inputs)
    except NoGradientsError:
        return _without_gradients(gm, inputs)
    except AtenTraceError as error:
        raise RefusedError(str(error).splitlines()[0]) from error
    verify(recorded.flat())
    joint = recorded.replace_graph(run_passes(recorded.flat(), verify_each=True).graph)
    if not joint.tangents:
        module = joint.program.module()
        return note_reads(wrap_runtime(joint.program, module.forward), joint.program)
    if known is not None:
        joint = known.used_in(joint)
        verify(joint.flat())
    parts = partition(joint)
    watched = _Watched(parts.forward.module())

    def compile_gradients(made: GradientProgram) -> Program | None:
        try:
            return _through_joint_graph(made.program, made.examples, made.known, left)
        except RefusedError as error:
            left.append(str(error))
            return None

    run = wrap_training(
        joint,
        parts,
        watched,
        parts.backward.module(),
        gm,
        compile_gradients=compile_gradients,
    )
    return note_reads(watched.or_eagerly(run, gm), joint.program)


class _ProgramError(Exception):
    """A compiled program raised, before anything was written to an input."""


@dataclass(frozen=True)
class _Watched:
    """A compiled program, and what runs in its place where it raises: eager may do so earlier."""

    program: Program

    def __call__(self, *inputs: torch.Tensor) -> Any:
        try:
            return self.program(*inputs)
        except Exception as error:
            raise _ProgramError from error

    def or_eagerly(self, run: Program, gm: fx.GraphModule) -> Program:
        """What runs the program, or where that raises the captured graph."""

        def call(*inputs: torch.Tensor) -> object:
            try:
                return run(*inputs)
            except _ProgramError:
                return gm(*inputs)

        return call


def _without_gradients(gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Program:
    try:
        graph = run_passes(to_aten(gm, inputs), verify_each=True)
    except AtenTraceError as error:
        raise RefusedError(str(error).splitlines()[0]) from error
    return note_reads(wrap_runtime(graph, torch.no_grad()(graph.module())), graph)


def load_compiler() -> bool:
    """Import the whole compiler, which this package does without; whether it is there."""
    try:
        import plait.backend
        import plait.pipeline
        import plait_bytecode_tracer
        import plait_cpp_codegen
        import plait_ir_lowering
        import plait_scheduler
    except ImportError:
        return False
    needed = (plait_bytecode_tracer, plait_ir_lowering, plait_scheduler, plait_cpp_codegen)
    return all(needed) and plait.pipeline is not None


def through_plait(program: Program, inputs: Sequence[torch.Tensor]) -> Compiled:
    """The whole compiler; what it breaks at, and graphs that a stage refuses, run eagerly."""
    import plait

    # Its cases are programs of one call each, so nothing is compiled for changing sizes.
    run = plait.compile(program, dynamic=False)

    def left() -> str:
        report = plait.report(run)
        broken = [f"[{each.code}] {each.reason}" for each in report.breaks]
        refused = [str(each.reason) for each in report.graphs if each.reason is not None]
        return "; ".join(dict.fromkeys([*refused, *broken]))

    return Compiled(run, left)


WAYS: dict[str, Way] = {"joint": through_joint_graph, "plait": through_plait}


def compiled(way: Way, program: Program, inputs: Sequence[torch.Tensor]) -> Compiled:
    """The program, compiled; what the way refuses goes through the whole compiler, which runs
    it as captured and says so.

    Raises RefusedError where that is not installed.
    """
    try:
        return way(program, inputs)
    except RefusedError as error:
        if not load_compiler():
            raise
        refusal = str(error)
        return Compiled(through_plait(program, inputs).run, lambda: refusal)
