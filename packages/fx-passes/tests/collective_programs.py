"""Programs of several processes, as graphs: what each is given, what one alone would compute."""

from __future__ import annotations

import random

import torch
from torch import fx

from plait_fx_passes import AtenGraph, to_aten

ops = torch.ops._c10d_functional


def reduced(x, op="sum", group="0"):
    return ops.wait_tensor(ops.all_reduce(x, op, group))


def gathered(x, processes, group="0"):
    return ops.wait_tensor(ops.all_gather_into_tensor(x, processes, group))


def scattered(x, processes, op="sum", group="0"):
    return ops.wait_tensor(ops.reduce_scatter_tensor(x, op, processes, group))


def graph_of(program, inputs) -> AtenGraph:
    """A program that calls functions of tensors, as it is recorded for these inputs."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    given = [fx.Proxy(graph.placeholder(f"input_{i}"), tracer) for i in range(len(inputs))]
    graph.output(tracer.create_arg(program(*given)))
    return to_aten(fx.GraphModule(torch.nn.Module(), graph), list(inputs))


def _numbers(*sizes, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator, dtype=dtype) / 2


def _forward(x, weights):
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        x = torch.tanh(torch.addmm(bias, x, weight))
    return x


WIDTH, LAYERS = 8, 3


class DataParallel:
    """Gradients of a loss over all processes' rows; each is reduced right behind the backward."""

    def __init__(self, processes):
        self.processes = processes
        sizes = [(WIDTH, WIDTH), (WIDTH,)] * LAYERS
        self.weights = [_numbers(*size, seed=i) for i, size in enumerate(sizes)]
        self.rows = [_numbers(3, WIDTH, seed=100 + rank) for rank in range(processes)]

    def program(self, x, *weights):
        loss = _forward(x, weights).square().sum()
        grads = torch.autograd.grad(loss, weights)
        means = [reduced(grads[i]) / self.processes for i in range(2 * LAYERS)]
        return loss.detach(), *means

    def inputs(self, rank):
        return [self.rows[rank], *(each.clone().requires_grad_() for each in self.weights)]

    def alone(self, rank):
        weights = [each.clone().requires_grad_() for each in self.weights]
        loss = _forward(torch.cat(self.rows), weights).square().sum() / self.processes
        mine = _forward(self.rows[rank], weights).square().sum().detach()
        return mine, *torch.autograd.grad(loss, weights)


class Sharded:
    """Weights of which each process has some rows, gathered for the forward, and for the backward;
    gradients of which each process gets these rows."""

    def __init__(self, processes):
        self.processes = processes
        self.data = DataParallel(processes)

    def program(self, x, *shards):
        n, inputs = self.processes, [x]
        for i in range(0, 2 * LAYERS, 2):
            weight, bias = gathered(shards[i], n), gathered(shards[i + 1], n)
            inputs.append(torch.tanh(torch.addmm(bias, inputs[-1], weight)))
        x = inputs.pop()
        loss, grad, grads = x.square().sum(), 2 * x, []
        for i in reversed(range(0, 2 * LAYERS, 2)):
            grad, before = grad * (1 - x * x), inputs.pop()
            grads.append(scattered(grad.sum(0), n) / n)
            grads.append(scattered(before.t() @ grad, n) / n)
            grad = grad @ gathered(shards[i], n).t()
            x = before
        return loss, *reversed(grads)

    def _shard(self, tensor, rank):
        return tensor.detach().chunk(self.processes)[rank].clone()

    def inputs(self, rank):
        return [self.data.rows[rank], *(self._shard(each, rank) for each in self.data.weights)]

    def alone(self, rank):
        loss, *grads = self.data.alone(rank)
        return loss, *(self._shard(each, rank) for each in grads)


class TensorParallel:
    """Two pairs of products: the first by columns, of gathered rows, the second by rows."""

    def __init__(self, processes):
        self.processes = processes
        self.x = _numbers(8 * processes, WIDTH, seed=1)
        self.weights = [_numbers(WIDTH, WIDTH, seed=10 + i) for i in range(4)]

    def program(self, x, a, b, c, d):
        n = self.processes
        for left, right in ((a, b), (c, d)):
            bias = left.sum(0)
            x = scattered(torch.relu(torch.addmm(bias, gathered(x, n), left)) @ right, n)
        return x + 1

    def inputs(self, rank):
        shards = [
            each.chunk(self.processes, 1 - i % 2)[rank].clone()
            for i, each in enumerate(self.weights)
        ]
        return [self.x.chunk(self.processes)[rank].clone(), *shards]

    def alone(self, rank):
        x, (a, b, c, d) = self.x, self.weights
        for left, right in ((a, b), (c, d)):
            x = torch.relu(x @ left + left.sum(0)) @ right
        x = x + 1
        return (x.chunk(self.processes)[rank],)


PROGRAMS = {"data": DataParallel, "sharded": Sharded, "tensor": TensorParallel}


class Random:
    """Collectives of whatever there is, and calls between them, in an order that a seed decides."""

    def __init__(self, processes, seed):
        self.processes = processes
        self.seed = seed

    def program(self, x, y):
        n, choose = self.processes, random.Random(self.seed)
        values, kept = [x, y], []
        for _ in range(30):
            one, other = choose.choice(values[-6:]), choose.choice(values)
            values.append(choose.choice(_STEPS)(one, other, n))
            if choose.random() < 0.2:
                kept.append(values[-1])
        return (*(each * 1 for each in kept), values[-1] + 0.5)

    def inputs(self, rank):
        return [_numbers(8, 4, seed=1000 * self.seed + 10 * rank + i) for i in range(2)]


_STEPS = (
    lambda x, y, n: torch.tanh(x) + y,
    lambda x, y, n: x @ y.t() @ torch.tanh(x),
    lambda x, y, n: torch.tanh(reduced(x)),
    lambda x, y, n: reduced(x * 0.5) * 0.5 + 0.25 * reduced(y * 0.5),
    lambda x, y, n: reduced(x, "max"),
    lambda x, y, n: torch.tanh(gathered(x, n)[8 - 8 // n : 16 - 8 // n]),
    lambda x, y, n: gathered(y[2:6], n)[:8] * 0.5 + y[2:3] * torch.tanh(x),
    lambda x, y, n: torch.cat([scattered(x, n)] * n) * 0.5,
    lambda x, y, n: torch.cat([scattered(torch.tanh(y), n), scattered(x, n, "max")] * n)[:8],
)
"""Of and to tensors of [8, 4]."""
