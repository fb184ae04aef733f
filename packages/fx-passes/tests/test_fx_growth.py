"""Joint graphs take work in proportion to the layers: counted in calls, which no noise touches."""

from __future__ import annotations

import sys

import pytest
import torch
from fx_oracle import trace
from torch import nn

from plait_fx_passes import partition, run_passes, to_joint, wrap_training


class Block(nn.Module):
    """A transformer's layer: attention and a perceptron, normalised, around a residual."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.shape = (2, 4, 3, heads, width // heads)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.join, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        parts = self.join(self.first(x)).view(self.shape).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        found = (query @ key.transpose(-1, -2)).softmax(-1) @ value
        x = x + self.out(found.transpose(1, 2).reshape(2, 4, 8))
        return x + self.inner(self.second(x))


class Perceptron(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.Tanh())


MODELS = {"transformer": (Block, (2, 4, 8, 16)), "perceptron": (Perceptron, (8, 16, 32, 64))}


def calls_of(run):
    """How many functions, of Python and of C, `run` calls; and what it returns."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = run()
    finally:
        sys.setprofile(before)
    return count, found


def stages(layer, layers):
    """The calls of each stage from a torch-level graph to a callable."""
    torch.manual_seed(0)
    gm = trace(nn.Sequential(*(layer() for _ in range(layers))))
    x = torch.randn(2, 4, 8)
    counts = {}
    counts["joint"], joint = calls_of(lambda: to_joint(gm, [x]))
    counts["passes"], flat = calls_of(lambda: run_passes(joint.flat()))
    joint = joint.replace_graph(flat.graph)
    counts["partition"], parts = calls_of(lambda: partition(joint))
    forward, backward = parts.forward.module(), parts.backward.module()
    counts["wrap"], run = calls_of(lambda: wrap_training(joint, parts, forward, backward, gm))
    run(x).sum().backward()
    return counts


@pytest.mark.parametrize("name", MODELS)
def test_joint_graphs_grow_linearly_with_layers(name):
    """A layer costs as much in a deep network as in a shallow one."""
    layer, sizes = MODELS[name]
    stages(layer, sizes[0])  # what a first graph in a process looks up
    found = [stages(layer, size) for size in sizes]
    for stage in found[0]:
        few = (found[1][stage] - found[0][stage]) / (sizes[1] - sizes[0])
        many = (found[3][stage] - found[2][stage]) / (sizes[3] - sizes[2])
        assert many <= 1.1 * few + 10, (stage, few, many)
