"""Tracing and checking grow with a model no faster than the model: by counting, not by time."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from tracer_oracle import compiled

from plait_bytecode_tracer import CompiledFunction, compile_module
from plait_bytecode_tracer.guards.native import NATIVE

X = torch.randn(2, 5, 8)


class Attention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.join, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask=None, **options):
        shape = (*x.shape[:-1], self.heads, -1)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.join(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + mask
        found = scores.softmax(-1) @ value
        return self.out(found.transpose(1, 2).reshape(x.shape)), options.get("scale", 1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(8)
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))

    def forward(self, x, **options):
        found, scale = self.attention(x, **options)
        x = x + found * scale
        return x + self.inner(self.norm(x))


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.register_buffer("mask", torch.zeros(5, 5))

    def forward(self, x):
        seen = {}
        for n, layer in enumerate(self.layers):
            x = layer(x, mask=self.mask)
            seen[f"layer {n}"] = x.shape
        return x, seen


def calls_of(function):
    """How many calls, of Python and C functions, a call makes."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def new(layers):
    return compile_module(Model(layers).eval(), compiled)


def per_layer(measure):
    """What a layer adds between 2 and 4 layers, and between 8 and 16."""
    found = {layers: measure(layers) for layers in (2, 4, 8, 16)}
    return (found[4] - found[2]) / 2, (found[16] - found[8]) / 8


def test_tracing_grows_linearly_with_layers():
    new(2)(X)  # what a first trace in a process looks up
    new(16)(X)
    few, many = per_layer(lambda layers: calls_of(lambda: new(layers)(X)))
    assert many <= 1.05 * few


def test_guards_grow_linearly_with_layers():
    def guards(layers):
        fast = new(layers)
        fast(X)
        (entry,) = fast._plait_compiled.entries
        return len(entry.capture.guards)

    few, many = per_layer(guards)
    assert many <= few


@pytest.mark.skipif(NATIVE.wait() is None, reason=f"no native: {NATIVE.failure}")
def test_a_call_makes_no_more_calls_for_more_layers():
    """What is checked natively calls nothing but the graph, however many modules there are."""
    ready, counts = (torch.zeros(2, 8),), []
    x = torch.randn(2, 8)

    def compile_function(function):
        return CompiledFunction(function, lambda graph, inputs, capture: lambda *given: ready)

    for layers in (2, 16):
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
        fast = compile_module(model, compile_function)
        for _ in range(6):
            assert fast(x) is ready[0]
        counts.append(calls_of(lambda fast=fast: fast(x)))
    assert counts[0] == counts[1]
