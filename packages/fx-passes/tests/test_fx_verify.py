"""The verifier accepts what recording makes and refuses graphs that are broken on purpose."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fx_oracle import trace

from plait_fx_passes import (
    AtenGraph,
    Computed,
    InputItself,
    Mutation,
    VerificationError,
    to_aten,
    verify,
)

aten = torch.ops.aten


def _program(x, y):
    total = x + y
    return total.sin(), total * 2


@pytest.fixture
def graph() -> AtenGraph:
    gm = trace(_program)
    for node in gm.graph.nodes:
        node.meta["source_line"] = f"model.py:{len(node.name)}"
    return to_aten(gm, [torch.randn(2, 3), torch.randn(2, 3)])


def call(graph, target):
    return next(node for node in graph.graph.nodes if node.target is target)


def insert(graph, target, *args):
    with graph.graph.inserting_before(graph.output_node):
        return graph.graph.create_node("call_function", target, args)


def test_what_recording_makes_is_accepted(graph):
    verify(graph)


def test_a_use_before_the_definition_is_shown_with_its_neighbours_and_line(graph):
    add, mul = call(graph, aten.add.Tensor), call(graph, aten.mul.Tensor)
    mul.append(add)
    with pytest.raises(VerificationError, match="uses %add before it is defined") as caught:
        verify(graph)
    text = str(caught.value)
    assert "→ %sin" in text
    assert "%mul" in text
    assert "model.py:3" in text


def test_a_name_defined_twice(graph):
    call(graph, aten.mul.Tensor)._rename("other")
    call(graph, aten.sin.default).name = "other"
    with pytest.raises(VerificationError, match="%other is defined twice"):
        verify(graph)


def test_a_target_that_is_no_overload(graph):
    call(graph, aten.sin.default).target = torch.sin
    with pytest.raises(VerificationError, match="not of an op overload"):
        verify(graph)


def test_a_mutating_call(graph):
    node = call(graph, aten.mul.Tensor)
    node.target = aten.mul_.Tensor
    with pytest.raises(VerificationError, match="mutates its arguments"):
        verify(graph)


def test_a_node_without_a_fake_value(graph):
    del call(graph, aten.sin.default).meta["val"]
    with pytest.raises(VerificationError, match="%sin has no fake value"):
        verify(graph)


def test_a_real_tensor_is_no_fake_value(graph):
    call(graph, aten.sin.default).meta["val"] = torch.ones(2, 3)
    with pytest.raises(VerificationError, match="%sin has no fake value"):
        verify(graph)


def test_a_wrong_fake_value(graph):
    mul = call(graph, aten.mul.Tensor)
    mul.meta["val"] = mul.meta["val"].t()
    verify(graph, repropagate=False)
    with pytest.raises(VerificationError, match=r"annotated f32\[3, 2\].*computes f32\[2, 3\]"):
        verify(graph)


def test_a_result_that_is_an_input(graph):
    x = graph.placeholders[0]
    graph.output_node.args = ((x, call(graph, aten.mul.Tensor)),)
    with pytest.raises(VerificationError, match="result 0 looks at the memory of input 0"):
        verify(graph)


def test_two_results_in_one_memory(graph):
    mul = call(graph, aten.mul.Tensor)
    view = insert(graph, aten.permute.default, mul, [1, 0])
    view.meta["val"] = mul.meta["val"].t()
    graph.output_node.args = ((mul, view),)
    with pytest.raises(VerificationError, match="results 0 and 1 share memory"):
        verify(graph)


def test_a_copy_back_from_a_written_input(graph):
    x, y = graph.placeholders
    graph.output_node.args = ((y, x),)
    broken = dataclasses.replace(
        graph, outputs=(), mutations=(Mutation(input=0, result=0), Mutation(input=1, result=1))
    )
    with pytest.raises(VerificationError, match="result 0 is copied back from written input 1"):
        verify(broken)


def test_surroundings_that_refer_to_nothing(graph):
    with pytest.raises(VerificationError, match="output 0 refers to result 7 of 2"):
        verify(dataclasses.replace(graph, outputs=(Computed(7),)))
    with pytest.raises(VerificationError, match="output 0 refers to input 2 of 2"):
        verify(dataclasses.replace(graph, outputs=(InputItself(2),)))
    with pytest.raises(VerificationError, match="is not there"):
        verify(dataclasses.replace(graph, mutations=(Mutation(0, 9),)))
    with pytest.raises(VerificationError, match="2 placeholders but 1 input sources"):
        verify(dataclasses.replace(graph, inputs=graph.inputs[:1]))


def test_a_node_after_the_output(graph):
    output = graph.output_node
    late = graph.graph.create_node("call_function", aten.sin.default, (graph.placeholders[0],))
    output.append(late)
    with pytest.raises(VerificationError, match="comes after the output"):
        verify(graph)


def test_a_placeholder_after_a_call(graph):
    late = graph.graph.create_node("placeholder", "late")
    late.meta["val"] = graph.placeholders[0].meta["val"]
    call(graph, aten.sin.default).append(late)
    with pytest.raises(VerificationError, match="comes after a call"):
        verify(graph)


def test_an_output_that_is_no_tuple_of_nodes(graph):
    graph.output_node.args = (call(graph, aten.sin.default),)
    with pytest.raises(VerificationError, match="must return a tuple of nodes"):
        verify(graph)
