"""Compiling takes work in proportion to a program: to the parameters of an optimizer's step, of
whatever shapes, and to layers, of which equal ones are lowered once."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest
import torch
from torch import nn

import plait
import plait_ir_lowering
import plait_scheduler


@pytest.fixture
def without_verifiers(monkeypatch):
    """Whose calls are not the compiler's."""
    monkeypatch.setenv("PLAIT_VERIFY", "0")


def calls_of(run, *args, **kwargs):
    """How many functions, of Python and of C, `run` calls; and what it returns."""
    calls = 0

    def note(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = run(*args, **kwargs)
    finally:
        sys.setprofile(before)
    return calls, found


def compiled_step(count):
    """A whole step of AdamW on parameters of as many shapes, and the calls of its compilation."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(20 + 3 * n)) for n in range(count)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)

    def step():
        optimizer.zero_grad()
        loss = sum(each.square().sum() for each in parameters)
        loss.backward()
        optimizer.step()
        return loss

    fast = plait.compile(step)
    calls, _ = calls_of(fast)
    return fast, calls


def test_compiling_grows_linearly_with_parameters(without_verifiers):
    """Calls of functions, of Python and C, from the first bytecode to the binary."""
    compiled_step(4)  # what a first compilation in a process looks up
    found = {count: compiled_step(count)[1] for count in (4, 8, 16)}
    few, many = (found[8] - found[4]) / 4, (found[16] - found[8]) / 8
    assert many <= 1.15 * few


def calls_of_updates(count):
    """The calls of the first compilation of AdamW's update, with counts of steps that are
    constants, and of the second one, which reads them and is given what follows from them."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(count)]
    for each in parameters:
        each.grad = torch.randn_like(each)
    fast = plait.compile(torch.optim.AdamW(parameters, lr=1e-2, foreach=True).step)
    return [calls_of(fast)[0] for _ in range(2)]


def test_compiling_an_update_grows_linearly_with_parameters(without_verifiers):
    calls_of_updates(4)  # what a first compilation in a process looks up
    found = {count: calls_of_updates(count) for count in (16, 32, 64)}
    for first, second, third in zip(*found.values(), strict=True):
        few, many = (second - first) / 16, (third - second) / 32
        assert many <= 1.1 * few


def test_many_shapes_are_few_functions(without_verifiers):
    """Of some 50 kernels, one or two for each parameter."""
    fast, _ = compiled_step(24)
    sources = [each.record.code.source for each in plait.report(fast).graphs if each.record.code]
    assert sum(len(re.findall(r"_range\(int64_t begin", each)) for each in sources) <= 14


class Layer(nn.Module):
    """A layer as Llama has it: rotated heads, causal attention, a gated perceptron, root mean
    squares."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.join, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def rotated(self, x, angles):
        left, right = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-right, left], -1) * angles.sin()

    def forward(self, x, angles):
        size = (*x.shape[:2], self.heads, -1)
        parts = [each.view(size).transpose(1, 2) for each in self.join(self.first(x)).chunk(3, -1)]
        query, key = (self.rotated(each, angles) for each in parts[:2])
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (query @ key.transpose(-1, -2) / 3).masked_fill(~mask, float("-inf"))
        mixed = (scores.softmax(-1) @ parts[2]).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        inner = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(inner)) * self.up(inner))


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x, angles):
        for layer in self.layers:
            x = layer(x, angles)
        return x.square().mean()


def lowered_and_scheduled(layers, training, monkeypatch):
    """The calls of lowering and of scheduling a model's graphs, and its nodes ("nodes")."""
    found = Counter()

    def counted(name, run):
        def wrapper(graph, **kwargs):
            if name == "lower":
                found["nodes"] += sum(node.op == "call_function" for node in graph.nodes)
            calls, made = calls_of(run, graph, **kwargs)
            found[name] += calls
            return made

        return wrapper

    with monkeypatch.context() as patch:
        lower, plan = plait_ir_lowering.lower, plait_scheduler.plan
        patch.setattr(plait_ir_lowering, "lower", counted("lower", lower))
        patch.setattr(plait_scheduler, "plan", counted("plan", plan))
        torch.manual_seed(0)
        fast = plait.compile(Model(layers), backend="python")
        x, angles = torch.randn(2, 8, 32), torch.randn(8, 8)
        with torch.set_grad_enabled(training):
            loss = fast(x, angles)
        if training:
            loss.backward()
    return found


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.sampled(2)
def test_equal_layers_cost_little_and_alike(training, monkeypatch):
    lowered_and_scheduled(1, training, monkeypatch)  # what a first one in a process looks up
    few, more, many = (lowered_and_scheduled(n, training, monkeypatch) for n in (2, 6, 24))
    for what in ("lower", "plan"):
        assert many[what] - more[what] <= 1.1 * (18 / 4) * (more[what] - few[what]), what
    a_node = (many["lower"] - more["lower"]) / (many["nodes"] - more["nodes"])
    assert a_node <= 0.5 * few["lower"] / few["nodes"]
