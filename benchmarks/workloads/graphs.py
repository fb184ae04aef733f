"""A graph network: messages along edges, weighed by attention, gathered at nodes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads.case import Case, Workload, of_module


class GraphAttention(nn.Module):
    """One layer of a graph attention network (Veličković et al., 2018), one head."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, outputs, bias=False)
        self.source, self.target = nn.Linear(outputs, 1), nn.Linear(outputs, 1, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        hidden = self.project(nodes)
        scores = self.source(hidden)[source, 0] + self.target(hidden)[target, 0]
        scores = F.leaky_relu(scores, 0.2)
        largest = scores.new_full((len(nodes),), float("-inf"))
        largest = largest.scatter_reduce(0, target, scores, "amax")
        weights = torch.exp(scores - largest[target])
        total = weights.new_zeros(len(nodes)).index_add(0, target, weights)
        messages = hidden[source] * (weights / total[target])[:, None]
        return torch.zeros_like(hidden).index_add(0, target, messages)


class GraphNetwork(nn.Module):
    """Two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = GraphAttention(width, width), GraphAttention(width, 16)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        return self.second(F.elu(self.first(nodes, edges)), edges)


def _graph() -> Case:
    count, degree = 4096, 8
    target = torch.arange(count).repeat_interleave(degree)
    source = torch.randint(0, count, (count * degree,))
    return of_module(GraphNetwork(64), torch.randn(count, 64), torch.stack([source, target]))


ROWS = (Workload("graph", "graph attention, 2 layers, 4096 nodes, 32768 edges", _graph, "others"),)
