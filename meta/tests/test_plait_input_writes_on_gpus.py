"""What programs of GPUs write over inputs: what decides it, and the text of their programs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import plait
from plait.codegen import Target
from plait.options import CompileOptions
from plait.record import Runner
from plait.replay import ProgramError
from plait.warm_programs import _once_at_most
from plait.writing import is_on_cpu, writes_inputs
from plait_bytecode_tracer.stored import NotRepeatedError
from plait_ir_lowering import Graph, parse_graph, print_graph
from plait_scheduler import (
    CallExtern,
    CopyBack,
    InputStorage,
    Launch,
    OnError,
    Program,
    SchedulerOptions,
    SharedStorage,
    memory_of,
    plan,
    verify_program,
)
from plait_utils.device_errors import HalfWrittenError

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


def graph(*devices: torch.device) -> Any:
    """A stand-in for a flat graph with inputs there, and one that is a size."""
    inputs = [*(SimpleNamespace(device=each) for each in devices), 3]
    return SimpleNamespace(example_inputs=inputs, graph=SimpleNamespace(nodes=[]))


def test_who_may_write_to_inputs() -> None:
    options, by_device = CompileOptions(), Target.BY_DEVICE
    assert writes_inputs(graph(), by_device, options)
    assert writes_inputs(graph(CPU, CPU), by_device, options)
    assert writes_inputs(graph(CPU), Target.PYTHON, options)
    assert writes_inputs(graph(FIRST, FIRST), by_device, options)
    assert writes_inputs(graph(FIRST, CPU), by_device, options)
    assert not writes_inputs(graph(FIRST, SECOND), by_device, options)
    assert not writes_inputs(graph(FIRST), Target.PYTHON, options)
    assert not writes_inputs(graph(CPU), Target.TRITON, options)
    made = graph(CPU)
    made.graph.nodes.append(SimpleNamespace(meta={"val": torch.empty(2, device="meta")}))
    assert not is_on_cpu(made, by_device)  # its inputs are, and it computes elsewhere
    in_python = CompileOptions(triton=(("native_host", False),))
    assert not writes_inputs(graph(FIRST), by_device, in_python)
    assert not is_on_cpu(graph(FIRST), by_device)


def on_gpu(graph: Graph) -> Program:
    moved = parse_graph(print_graph(graph).replace(" on cpu", " on cuda:0"))
    program = plan(moved, options=SchedulerOptions.for_gpu()).program
    verify_program(program)
    return program


def forward_of(function: Any) -> Program:
    """The program of a GPU for the first graph that a function was compiled to."""
    loops = plait.report(function).graphs[0].record.loops
    assert loops is not None
    return on_gpu(loops)


def steps(program: Program, kind: type) -> int:
    return sum(isinstance(step, kind) for step in program.steps)


def written(program: Program) -> set[str]:
    """The inputs in whose memory something is computed."""
    buffers = {each.name: each for each in program.buffers}
    shared = [each.name for each in program.buffers if isinstance(each.storage, SharedStorage)]
    memories = {memory_of(buffers, name) for name in shared}
    return {name for name in memories if isinstance(buffers[name].storage, InputStorage)}


def test_a_step_of_adamw_writes_parameters_and_state_alone() -> None:
    """Of a GPT-2's kinds of parameters: a handful of launches, no memory, no copies."""
    shapes = [(96, 32), (32,), (32,), (32, 96), (96,), (32, 32), (32,), (32, 128), (128,)] * 6
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for each in parameters:
        each.grad = torch.randn_like(each)
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    optimizer.step()
    step = plait.compile(optimizer.step)
    step()
    graphs = [each.record.loops for each in plait.report(step).graphs]
    (program,) = [on_gpu(loops) for loops in graphs if loops is not None and loops.mutations]
    assert len(written(program)) >= 3 * len(parameters)
    assert steps(program, Launch) <= 6
    assert steps(program, CopyBack) == 0
    assert not program.arena_nbytes.terms


def test_statistics_of_normalizations_are_written_by_few_launches() -> None:
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*layers)
    compiled = plait.compile(lambda x: model(x).square().mean())
    compiled(torch.randn(2, 8, 16, 16)).backward()
    program = forward_of(compiled)
    assert steps(program, CopyBack) == 0
    assert len(written(program)) == 3 * len(layers)
    last = max(n for n, step in enumerate(program.steps) if isinstance(step, CallExtern))
    assert sum(isinstance(step, Launch) for step in program.steps[last:]) <= 5


def test_weights_are_converted_together_beside_statistics() -> None:
    """In 16 bits each layer reads its weight in another type: one launch makes them all."""
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*layers)

    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    compiled = plait.compile(loss)
    compiled(torch.randn(2, 8, 16, 16)).backward()
    program = forward_of(compiled)
    first = next(n for n, step in enumerate(program.steps) if isinstance(step, CallExtern))
    assert sum(isinstance(step, Launch) for step in program.steps[:first]) <= 3


@pytest.mark.parametrize("how", ["index_copy_", "slice"])
def test_rows_of_a_cache_are_replaced_in_place(how: str) -> None:
    def decode(cache: torch.Tensor, at: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if how == "slice":
            cache[:, 5:6] = key
        else:
            cache.index_copy_(1, at, key)
        return cache @ key.transpose(-1, -2)

    compiled = plait.compile(decode)
    compiled(torch.zeros(4, 64, 16), torch.tensor([5]), torch.randn(4, 1, 16))
    program = forward_of(compiled)
    assert steps(program, CopyBack) == 0
    assert steps(program, OnError) == 1
    whole = 4 * 4 * 64 * 16
    assert program.arena_nbytes.as_int() < whole, "the cache is not copied"


def test_a_stored_call_that_has_changed_inputs_is_not_made_again() -> None:
    def failing(error: Exception) -> Runner:
        def run(*inputs: Any) -> Any:
            raise ProgramError from error

        return _once_at_most(run)

    lost = HalfWrittenError("a launch failed")
    with pytest.raises(NotRepeatedError) as caught:
        failing(lost)(torch.ones(3))
    assert caught.value.__cause__ is lost
    with pytest.raises(ValueError, match="anything else"):
        failing(ValueError("anything else"))(torch.ones(3))
