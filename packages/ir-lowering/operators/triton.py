"""`python -m operators --backend triton`: as for a GPU, by Triton's kernels, without a GPU.

A program is recorded on fake tensors of a GPU, and lowered and scheduled as for one. What comes
out is moved to the CPU, where Triton's interpreter runs its kernels, and ATen what it calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from operators.judge import difference
from operators.samples import Program, name_of, program_of
from operators.score import Outcome, Verdict
from operators.texts import check_loops, check_scheduled
from plait import CompileOptions
from plait_fx_passes import AtenGraph, AtenTraceError, run_passes, to_aten, wrap_runtime
from plait_ir_lowering import LoweringError, external_ops, lower
from plait_scheduler import Program as Scheduled
from plait_scheduler import device_limits, parse_program, plan, print_program
from plait_triton_codegen import build

GPU = torch.device("cuda", 0)
_IN_TEXT = {"cuda:0": "cpu", 'device("cuda", 0)': 'device("cpu", None)'}
"""How the text of a program writes where buffers are, and where operators make tensors."""


@dataclass(frozen=True)
class ForGpu:
    """A program that was lowered and scheduled as for a GPU."""

    graph: AtenGraph
    scheduled: Scheduled
    calls: tuple[str, ...]
    """The operators that it calls, by name."""


def _greatest(x: Tensor, k: int, dim: int = -1, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """The greatest elements, what lies where they are said to lie, and whether that is at as many
    places."""
    values, places = torch.topk(x, k, dim, *args, **kwargs)
    if not x.dim():
        return values, places
    differ = places.sort(dim).values.diff(dim=dim) > 0
    return values, x.gather(dim, places), differ


_WITHOUT_ORDER = {"topk": _greatest}
"""Operators that choose among equal elements on a CPU otherwise than on GPUs, by name; each with
what is compared in their place."""


def check(op: Any, dtype: torch.dtype, count: int) -> Verdict:
    """The first samples of one operator in one dtype, as one program."""
    name, kind = name_of(op), str(dtype).removeprefix("torch.")
    program = program_of(op, dtype, count)
    if program is None:
        return Verdict(name, kind, Outcome.EAGER_RAISES)
    if name in _WITHOUT_ORDER:
        program = replace(program, operator=_WITHOUT_ORDER[name])
    return Verdict(name, kind, *judged(program))


def judged(program: Program) -> tuple[Outcome, str]:
    """How a program of CPU tensors ends by the kernels that a GPU would run."""
    torch.manual_seed(1)
    wanted = program(*program.inputs())
    try:
        made = for_gpu(program)
    except (AtenTraceError, LoweringError) as error:
        return Outcome.EAGERLY, str(error)
    except Exception as error:  # whatever comes here is the compiler's fault, and the score's
        return Outcome.WRONG, f"{type(error).__name__}: {error}"[:300]
    try:
        torch.manual_seed(1)
        got = interpreted(made, program.inputs())
    except Exception as error:
        return Outcome.WRONG, f"{type(error).__name__}: {error}"[:300]
    # How results are put together is the front end's part.
    theirs = tree_leaves(wanted)
    ours = [
        _as_of_a_cpu(one, other, laid_out=bool(made.calls))
        for one, other in zip(tree_leaves(got), theirs, strict=True)
    ]
    wrong = difference(program, ours, theirs)
    if wrong is not None:
        return Outcome.WRONG, wrong
    return (Outcome.EXTERNAL, ", ".join(made.calls)) if made.calls else (Outcome.LOOPS, "")


def for_gpu(program: Program) -> ForGpu:
    """The program, lowered and scheduled for tensors of a GPU.

    Raises AtenTraceError or LoweringError where plait runs it as captured.
    """
    chosen = CompileOptions()
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=GPU)
            for each in program.tensors
        ]
        aten = to_aten(_captured(program), fakes, decompositions=chosen.decompositions())
    aten = run_passes(aten, chosen.passes())
    loops = lower(aten.graph, options=chosen.lowering_options())
    check_loops(loops)
    scheduled = plan(loops, options=chosen.scheduler_options(limits=device_limits(loops))).program
    check_scheduled(scheduled)
    return ForGpu(aten, scheduled, tuple(sorted(external_ops(loops))))


def interpreted(made: ForGpu, inputs: Sequence[Tensor]) -> object:
    """What it gives of CPU tensors, by Triton's interpreter."""
    text = print_program(made.scheduled)
    for gpu, cpu in _IN_TEXT.items():
        text = text.replace(gpu, cpu)
    built = build(parse_program(text))
    return wrap_runtime(made.graph, built.run)(*inputs)


def _as_of_a_cpu(one: Any, other: Any, *, laid_out: bool) -> Any:
    """A result as eager gives it on a CPU, where torch's kernels of GPUs give it otherwise: in
    another type of floats, as statistics of norms, or, where libraries are called, otherwise in
    memory."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return one
    if one.dtype.is_floating_point and other.dtype.is_floating_point:
        one = one.to(other.dtype)
    return torch.empty_like(other, dtype=one.dtype).copy_(one) if laid_out else one


def _captured(program: Program) -> fx.GraphModule:
    """A graph of one call, of the program with the devices that it names being the GPU."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{number}") for number in range(len(program.tensors))]
    graph.output(graph.call_function(_on_gpu(program).__call__, tuple(inputs)))
    return fx.GraphModule({}, graph)


def _on_gpu(program: Program) -> Program:
    calls = tuple((_moved(flat), spec, places) for flat, spec, places in program.calls)
    return Program(calls, program.operator, program.tensors)


def _moved(values: Any) -> Any:
    values = [GPU if value == "cpu" else value for value in values]
    return tree_map_only(torch.device, lambda _: GPU, values)
