"""What a compiled program's autograd node costs, in calls of functions: no noise touches these."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import fx

from plait_fx_passes import SavedInput, partition, to_joint, wrap_training


def calls_of(run) -> int:
    """How many functions, of Python and of C, one run calls."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def ready(graph):
    """In the place of a compiled program: what it returned once."""
    results = []

    def run(*inputs):
        if not results:
            results.append(graph.module()(*inputs))
        return results[0]

    return run


def step_of(layers: int, *, plain: bool = False):
    """A forward and backward of a network whose programs compute nothing; ``plain``: in a node
    that does no more than call them."""
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(layers)]
    graph = fx.Graph()
    value = graph.placeholder("x")
    for number in range(layers):
        weight = graph.placeholder(f"w{number}")
        value = graph.call_function(torch.tanh, (graph.call_function(torch.mm, (value, weight)),))
    graph.output(graph.call_method("sum", (value,)))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    inputs = (torch.randn(2, 4), *weights)
    joint = to_joint(gm, inputs)
    parts = partition(joint)
    forward, backward = ready(parts.forward), ready(parts.backward)
    wrap = plain_node if plain else wrap_training
    run = wrap(joint, parts, forward, backward, gm)
    one = torch.ones(())

    def step():
        torch.autograd.backward(run(*inputs), one)

    step()
    return step


def plain_node(joint, parts, forward, backward, gm):
    """The least that a node has to do."""

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            found = (*given, *forward(*given))
            ctx.save_for_backward(*[found[place] for place in places])
            return found[len(given)]

        @staticmethod
        def backward(ctx, tangent):
            return (None, *backward(*ctx.saved_tensors, tangent))

    places = [
        each.input if isinstance(each, SavedInput) else joint.input_count + each.result
        for each in parts.saved
    ]
    return Plain.apply


@pytest.mark.parametrize("layers", [1, 8])
def test_a_forward_and_backward_call_few_functions(layers):
    """Beside those that any node costs."""
    beside = calls_of(step_of(layers)) - calls_of(step_of(layers, plain=True))
    assert beside <= 21


def test_the_calls_grow_with_the_tensors_alone():
    """By one for each result, which is looked at."""
    few, some, more = (calls_of(step_of(layers)) for layers in (2, 4, 8))
    assert (some - few, more - some) == (2, 4)
