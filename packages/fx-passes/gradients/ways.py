"""The ways in which a program is compiled with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx, nn

from plait_fx_passes import (
    AtenTraceError,
    NoGradientsError,
    partition,
    run_passes,
    to_aten,
    to_joint,
    verify,
    wrap_runtime,
    wrap_training,
)

Program = Callable[..., object]
Compiler = Callable[[Program, Sequence[torch.Tensor]], Program]


class RefusedError(Exception):
    """The compiler says that it does not take the program, which then runs eagerly."""


def graph_of(program: Program, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """One call of the whole program as a torch-level graph."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"x{index}") for index in range(len(inputs))]
    graph.output(graph.call_function(program, tuple(placeholders)))
    return fx.GraphModule(nn.Module(), graph)


def through_joint_graph(program: Program, inputs: Sequence[torch.Tensor]) -> Program:
    """Both halves of the optimized joint graph, run by ATen's kernels.

    Where autograd only sees views of inputs, there is one graph, and the views are taken outside.
    """
    gm = graph_of(program, inputs)
    try:
        recorded = to_joint(gm, inputs)
    except NoGradientsError:
        return _without_gradients(gm, inputs)
    except AtenTraceError as error:
        raise RefusedError(str(error).splitlines()[0]) from error
    verify(recorded.flat())
    joint = recorded.replace_graph(run_passes(recorded.flat(), verify_each=True).graph)
    parts = partition(joint)
    return wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)


def _without_gradients(gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Program:
    try:
        graph = run_passes(to_aten(gm, inputs), verify_each=True)
    except AtenTraceError as error:
        raise RefusedError(str(error).splitlines()[0]) from error
    return wrap_runtime(graph, torch.no_grad()(graph.module()))


def through_plait(program: Program, inputs: Sequence[torch.Tensor]) -> Program:
    """The whole compiler; graphs that a stage refuses run as captured."""
    import plait

    # Its cases are programs of one call each, so nothing is compiled for changing sizes.
    return plait.compile(program, dynamic=False)


WAYS: dict[str, Compiler] = {"joint": through_joint_graph, "plait": through_plait}
