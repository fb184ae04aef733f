"""Which programs of a GPU cannot be recorded as CUDA graphs, and what is told of these."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from plait_cpp_codegen import DeviceGraphs, DeviceKernel
from plait_cpp_codegen.device_graphs import graph_refusal
from plait_ir_lowering import lower
from plait_scheduler import Program, schedule


def _program(function, *inputs: Tensor, mutations: Mapping[int, int] | None = None) -> Program:
    traced = make_fx(function, tracing_mode="fake")(*inputs)
    return schedule(lower(traced, mutations=mutations))


def _kernels(program: Program, checks: int = 0) -> dict[str, DeviceKernel]:
    return {
        kernel.name: DeviceKernel(kernel.name, b"", 32, 0, (), checks=checks)
        for kernel in program.kernels
    }


def test_random_numbers_are_no_part_of_a_graph() -> None:
    program = _program(lambda x: (x + torch.rand_like(x),), torch.ones(8))
    reason = graph_refusal(program, _kernels(program))
    assert reason is not None
    assert "draws random numbers" in reason


def test_calls_of_python_are_no_part_of_a_graph() -> None:
    with torch.library._scoped_library("plait_graph_tests", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        program = _program(lambda x: (torch.ops.plait_graph_tests.twice(x),), torch.ones(8))
        assert graph_refusal(program, _kernels(program)) == (
            "plait_graph_tests::twice is called from Python"
        )


def test_a_change_of_an_input_must_not_come_behind_a_check() -> None:
    def update(state, table, ids):
        return (state + F.embedding(ids, table).sum(0),)

    inputs = torch.zeros(4), torch.ones(5, 4), torch.tensor([0, 4])
    program = _program(update, *inputs, mutations={0: 0})
    assert graph_refusal(program, _kernels(program)) is None
    assert "checking indices" in str(graph_refusal(program, _kernels(program, checks=1)))
    plain = _program(update, *inputs)
    assert graph_refusal(plain, _kernels(plain, checks=1)) is None


def test_reasons_and_recordings_are_told() -> None:
    graphs = DeviceGraphs(0, "model")
    assert str(graphs) == "CUDA graphs: none recorded"
    graphs.recorded(2)
    assert str(graphs) == "CUDA graphs: 1 recorded, 2 inputs and outputs copied"
    graphs.refused(RuntimeError("out of memory"))
    assert graphs.reason == "out of memory"
    assert str(graphs).endswith("; out of memory")
