"""Outputs that are views of one memory, inputs or constants, and inputs that change."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cpp_calls import call, extern_graph
from cpp_graphs import buffer, loads, pointwise_graph

from plait_cpp_codegen import build, kernel_alone
from plait_cpp_codegen.outputs import OutputPlan
from plait_ir_lowering import (
    Definition,
    Device,
    ExternCall,
    Graph,
    Layout,
    Op,
    Pointwise,
    TensorRef,
    Var,
    as_index,
)
from plait_scheduler import SharedStorage, load_python, render_python, schedule
from plait_utils.device_errors import HalfWrittenError

X = torch.randn(4, 6)
WHOLE = Layout.of([4, 6], [6, 1])
COLUMN = Layout.of([4], [6], 2)
TURNED = Layout.of([6, 4], [1, 6])


def graph_with(outputs) -> Graph:
    made = pointwise_graph([X], {"y": lambda a: Op("neg", [a])})
    return Graph(made.name, made.inputs, made.definitions, outputs)


CASES = {
    "twice": (TensorRef("y"), TensorRef("y")),
    "whole and views": (TensorRef("y", TURNED), TensorRef("y"), TensorRef("y", COLUMN)),
    "views alone": (TensorRef("y", COLUMN), TensorRef("y", TURNED)),
    "input": (TensorRef("x0"), TensorRef("y")),
    "view of an input": (TensorRef("x0", COLUMN), TensorRef("y")),
    "constants": (None, TensorRef("y"), 7, True, 0.5),
    "nothing else": (TensorRef("x0"), 3),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_python_host(name):
    program = schedule(graph_with(CASES[name]))
    executable = build(program)
    assert executable.fallback_reason is None, executable.fallback_reason
    expected = load_python(render_python(program))([X])
    for _ in range(3):
        actual = executable(X)
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            if not isinstance(e, torch.Tensor):
                assert a == e
                assert type(a) is type(e)
                continue
            assert torch.equal(a, e)
            assert a.stride() == e.stride()
            assert (a is X) == (e is X)
        places = [
            [t.untyped_storage().data_ptr() for t in found if isinstance(t, torch.Tensor)]
            for found in (actual, expected)
        ]
        shared = [[p == q for p in found for q in found] for found in places]
        assert shared[0] == shared[1]


def test_views_of_an_external_calls_result():
    made = call(torch.ops.aten.frac.default, X)
    graph = extern_graph([made], [made()])
    outputs = (TensorRef("y0_0"), TensorRef("y0_0", TURNED))
    executable = build(schedule(Graph("g", graph.inputs, graph.definitions, outputs)))
    assert executable.fallback_reason is None, executable.fallback_reason
    whole, turned = executable(X)
    assert torch.equal(whole, X.frac())
    assert torch.equal(turned, X.frac().T)
    whole.zero_()
    assert not turned.any()


def test_inputs_that_the_program_changes():
    graph = graph_with((TensorRef("y", TURNED), TensorRef("x0")))
    graph = Graph(
        graph.name, graph.inputs, graph.definitions, graph.outputs, (("x0", TensorRef("y")),)
    )
    executable = build(schedule(graph))
    assert executable.fallback_reason is None, executable.fallback_reason
    x = X.clone()
    turned, before = executable(x)
    assert torch.equal(before, X)
    assert torch.equal(x, -X)
    assert torch.equal(turned, -X.T)
    executable(x)
    assert torch.equal(x, X)


@pytest.mark.parametrize("size", [0, 1, 1000, 300_001])
@pytest.mark.parametrize("threads", [1, 3])
def test_large_inputs_are_overwritten_in_parallel(size, threads):
    """What a call after it may fail is computed elsewhere, and copied at the end."""
    x = torch.randn(size)
    made = call(torch.ops.aten.frac.default, x)
    graph = extern_graph([made], [made()])
    mutations = (("x0", TensorRef("y0_0")),)
    graph = Graph("g", graph.inputs, graph.definitions, (), mutations)
    executable = build(schedule(graph))
    assert executable.fallback_reason is None, executable.fallback_reason
    expected, before = x.frac(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert executable(x) == ()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(x, expected)


def test_a_result_lives_on_in_the_memory_of_what_it_took_over():
    """Of a temporary, and of an external call's result: as the program's own, call after call."""
    x = torch.randn(304, 304)
    for op, overload, out, given, wanted in (
        ("aten::mm", "out", True, (TensorRef("x0"), TensorRef("x0")), x @ x),
        ("aten::tril", "", False, (TensorRef("x0"), as_index(0)), x.tril()),
    ):
        x0, h, y = (replace(buffer("x0", x), name=name) for name in ("x0", "h", "y"))
        ranges = Var("i0", 304), Var("i1", 304)
        body = Pointwise(ranges, Op("exp", loads([h], ranges)))
        first = Definition((h,), ExternCall(op, overload, given, out))
        graph = Graph("g", (x0,), (first, Definition((y,), body)), (TensorRef("y"),))
        executable = build(schedule(graph))
        assert executable.fallback_reason is None, executable.fallback_reason
        storages = {b.name: b.storage for b in executable.program.buffers}
        assert storages["y"] == SharedStorage("h")
        results = [executable(x * scale)[0] for scale in (1.0, 1.0, 0.0)]
        assert len({r.data_ptr() for r in results}) == 3
        torch.testing.assert_close(results[0], wanted.exp())
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[2], torch.ones(304, 304))


def test_what_fails_behind_a_change_of_inputs_says_so():
    """Whoever calls a program runs nothing in its place then."""

    def fails(*given):
        raise RuntimeError("out of memory")

    plan = OutputPlan((fails,))
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        plan.around(lambda *inputs: inputs)(X)
    with pytest.raises(HalfWrittenError, match="out of memory, after inputs were changed"):
        plan.around(lambda *inputs: inputs, changes=True)(X)


def test_a_kernel_of_a_program_on_a_gpu_is_alone_on_the_gpu():
    program = schedule(graph_with((TensorRef("y"),)))
    first, *others = program.buffers
    moved = tuple(replace(each, device=Device("cuda", 0)) for each in others)
    mixed = replace(program, buffers=(first, *moved))
    assert {each.device for each in kernel_alone(mixed, program.kernels[0]).buffers} == {
        Device("cuda", 0)
    }
