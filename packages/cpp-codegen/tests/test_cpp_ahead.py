"""Kernels that compute much of what they read of large tensors read ahead."""

from __future__ import annotations

import torch
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import build
from plait_cpp_codegen.kernels.emit import render_kernel
from plait_ir_lowering import Graph, Op
from plait_scheduler import schedule

LARGE = 4096, 1024


def _graph(x: torch.Tensor, y: torch.Tensor, *names: str) -> Graph:
    def value(a, b):
        for name in names:
            a = Op(name, [a])
        return Op("mul", [a, b])

    return pointwise_graph([x, y], {"z": value})


def _body(graph: Graph) -> str:
    (kernel,) = schedule(graph).kernels
    return render_kernel(kernel, 64).body


def test_what_computes_much_reads_what_is_large_ahead():
    x, row = torch.empty(LARGE), torch.empty(1024).expand(LARGE)
    assert _body(_graph(x, x.clone(), "sin", "tanh")).count("load_ahead<L>(") == 2
    assert _body(_graph(x, row, "sin", "tanh")).count("load_ahead<L>(") == 1
    assert "load_ahead" not in _body(_graph(x, x.clone(), "neg"))
    small = torch.empty(4095, 1024)
    assert "load_ahead" not in _body(_graph(small, small.clone(), "sin", "tanh"))


def test_the_numbers_are_those_of_each_point():
    torch.manual_seed(0)
    x, y = torch.randn(LARGE), torch.randn(LARGE).bfloat16().float()
    (large,) = build(schedule(_graph(x, y, "sin", "tanh")))(x, y)
    few = x[:100].clone(), y[:100].clone()
    (small,) = build(schedule(_graph(*few, "sin", "tanh")))(*few)
    assert torch.equal(large[:100], small)
    torch.testing.assert_close(large, x.sin().tanh() * y, rtol=1e-5, atol=1e-6)
