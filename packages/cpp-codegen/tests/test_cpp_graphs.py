"""Which programs of a GPU cannot be recorded as CUDA graphs, and what is told of these."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from plait_cpp_codegen import DeviceGraphs
from plait_cpp_codegen.device_graphs import Use, buffer_uses, graph_refusal
from plait_ir_lowering import LoweringOptions, lower
from plait_scheduler import Program, parse_program, print_program, schedule


def _program(function, *inputs: Tensor, mutations: Mapping[int, int] | None = None) -> Program:
    traced = make_fx(function, tracing_mode="fake")(*inputs)
    options = LoweringOptions(own_products=False)
    program = schedule(lower(traced, options=options, mutations=mutations))
    return parse_program(print_program(program).replace(" on cpu", " on cuda:0"))


ATTENTION = """\
program attention()
  inputs q
  arena 0
  buffer q: f32[2, 4, 32, 64] on cuda:0 = input 0
  buffer out: f32[2, 4, 32, 64] on cuda:0 = extern
  steps
    call new(out, _, _, _) = aten::_scaled_dot_product_efficient_attention(q, q, q, None, False, 0.0, True, None)
    return out
"""  # noqa: E501


RESERVING = """\
program reserving()
  inputs x
  arena 0
  buffer x: f32[8] on cuda:0 = input 0
  buffer state: i64[2] on cuda:0 = extern
  steps
    {step}
    return state
"""


def test_random_numbers_are_no_part_of_a_graph() -> None:
    program = _program(lambda x: (x + torch.rand_like(x),), torch.ones(8))
    reason = graph_refusal(program)
    assert reason is not None
    assert "draws random numbers" in reason


def test_numbers_of_a_state_that_is_reserved_are_part_of_a_graph() -> None:
    state = 'call new(state) = plait_philox::reserve(8, device("cuda", 0))'
    program = parse_program(RESERVING.format(step=state))
    assert graph_refusal(program) is None
    assert [*buffer_uses(program)] == [Use.KERNELS, Use.CALLS]


def test_calls_of_python_are_no_part_of_a_graph() -> None:
    with torch.library._scoped_library("plait_graph_tests", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        program = _program(lambda x: (torch.ops.plait_graph_tests.twice(x),), torch.ones(8))
        assert graph_refusal(program) == ("plait_graph_tests::twice is called from Python")


def test_reasons_and_recordings_are_told() -> None:
    graphs = DeviceGraphs(0, "model")
    assert str(graphs) == "CUDA graphs: none recorded"
    graphs.recorded(2)
    assert str(graphs) == "CUDA graphs: 1 recorded, 2 inputs and outputs copied"
    graphs.refused(RuntimeError("out of memory"))
    assert graphs.reason == "out of memory"
    assert str(graphs).endswith("; out of memory")


def test_attention_draws_for_its_dropout_alone() -> None:
    program = parse_program(ATTENTION)
    assert graph_refusal(program) is None
    dropping = parse_program(ATTENTION.replace("False, 0.0,", "False, 0.5,"))
    assert "draws random numbers" in str(graph_refusal(dropping))


def test_what_uses_inputs_and_outputs() -> None:
    def program(state, x, y):
        new = state + y
        return new, x @ new, y.exp(), x[:2] * 2

    inputs = torch.zeros(96, 96), torch.ones(96, 96), torch.ones(96)
    uses = buffer_uses(_program(program, *inputs))
    kernels, calls = Use.KERNELS, Use.CALLS
    assert [*uses] == [kernels, calls, kernels, calls, calls, kernels, kernels]
    changed = buffer_uses(_program(lambda s, x: (s @ x,), *inputs[:2], mutations={0: 0}))
    assert [*changed] == [Use.WRITING_CALLS, calls]
