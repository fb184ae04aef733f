"""Programs made at random: views, writes, arithmetic and outputs that share memory."""

from __future__ import annotations

import copy

import torch
from fx_oracle import check_program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

VIEWS = [
    ("t", ()),
    ("view", (-1, 2)),
    ("reshape", (-1,)),
    ("unsqueeze", (0,)),
    ("squeeze", ()),
    ("__getitem__", (0,)),
    ("__getitem__", (slice(1, None),)),
    ("__getitem__", (slice(None, None, 2),)),
    ("expand_as", None),
    ("flatten", ()),
    ("detach", ()),
    ("contiguous", ()),
    ("diagonal", ()),
    ("narrow", (0, 0, 1)),
]
PURE = [("sin", ()), ("add", (1.5,)), ("mul", (1,)), ("clone", ()), ("neg", ()), ("float", ())]
WRITES = [("add_", (1,)), ("mul_", (2,)), ("zero_", ()), ("relu_", ()), ("fill_", (0.5,))]
BINARY = ["add", "mul", "sub", "add_", "copy_"]

step = st.tuples(
    st.sampled_from(["view", "pure", "write", "binary"]),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 20),
)


def build(steps, outputs, inputs):
    """A graph of those steps that eager can run, and how many tensors it holds."""
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(inputs))]
    values = [each.clone() for each in inputs]
    for kind, choice, left, right in steps:
        at = left % len(nodes)
        other = right % len(nodes)
        if kind == "binary":
            name, extra = BINARY[choice % len(BINARY)], (other,)
        else:
            table = {"view": VIEWS, "pure": PURE, "write": WRITES}[kind]
            name, constants = table[choice % len(table)]
            extra = (other,) if constants is None else constants
        references = kind == "binary" or name == "expand_as"
        try:
            arguments = [values[i] for i in extra] if references else extra
            value = getattr(values[at], name)(*arguments)
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue  # eager refuses this step
        if value.numel() > 200:
            continue
        operands = [nodes[i] for i in extra] if references else extra
        nodes.append(graph.call_method(name, (nodes[at], *operands)))
        values.append(value)
    graph.output(tuple(nodes[i % len(nodes)] for i in outputs))
    return fx.GraphModule(torch.nn.Module(), graph)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    steps=st.lists(step, min_size=1, max_size=9),
    outputs=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    shared=st.booleans(),
)
def test_random_programs_behave_as_in_eager(steps, outputs, shared):
    base = torch.linspace(-2, 2, 24, dtype=torch.float64)
    inputs = [base[:12].view(3, 4), base[12:].view(3, 4).clone()]
    if shared:
        inputs.append(inputs[0])
    gm = build(steps, outputs, [each.clone() for each in inputs])
    try:
        with torch.no_grad():
            gm(*copy.deepcopy(inputs))
    except RuntimeError:
        return  # the shared input makes eager refuse
    check_program(gm, inputs, tolerance=1e-12)
