"""Quantiles, medians and their gradients on GPUs: from operators of torch to loops that sort."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from plait_fx_passes import run_passes, to_aten
from plait_ir_lowering import Graph, Sort, external_ops, interpret, lower


def gpu_graph(function, x: torch.Tensor) -> Graph:
    """The loop IR of a function of a tensor on a GPU, which need not be there."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(x.shape, dtype=x.dtype, device="cuda:0")
    traced = fx.symbolic_trace(lambda x: (function(x),))
    return lower(run_passes(to_aten(traced, [fake])).graph)


def is_eagers(function, x: torch.Tensor) -> None:
    graph = gpu_graph(function, x)
    assert not external_ops(graph)
    assert any(isinstance(definition.body, Sort) for definition in graph.definitions)
    (found,) = interpret(graph, [x])
    torch.testing.assert_close(found, function(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("function", [torch.quantile, torch.nanquantile])
def test_quantiles(function, interpolation, dtype):
    x = torch.randint(-3, 4, (6, 9)).to(dtype)
    x = torch.where(torch.rand(6, 9) < 0.2, torch.nan, x)
    x[0], x[1] = torch.arange(9), torch.nan
    for q in (0.0, 0.3, 0.5, 1.0):
        for axis in (0, 1, None):
            is_eagers(lambda x, q=q, a=axis: function(x, q, a, interpolation=interpolation), x)


SELECTED = {
    "argsort": lambda x: x.argsort(dim=1, stable=True),
    "argsort, descending": lambda x: x.argsort(dim=0, descending=True, stable=True),
    "msort": lambda x: x.msort(),
    "median of all": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(1).values,
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SELECTED)
def test_what_sorts(name, dtype):
    is_eagers(SELECTED[name], torch.randint(-9, 9, (5, 16)).to(dtype))


DIFFERENTIATED = {
    "sort": lambda x: x.sort(1).values * torch.arange(9.0, device=x.device),
    "kthvalue": lambda x: x.kthvalue(4, 1).values,
    "median": lambda x: x.median(0).values,
    "nanmedian": lambda x: x.nanmedian(1).values,
    "median of all": lambda x: x.median(),
    "quantile": lambda x: x.quantile(0.3, 1),
    "top-k": lambda x: x.topk(3).values,
}


def _on_gpu(graph: fx.Graph) -> fx.Graph:
    """A graph that was recorded on a CPU: without a GPU autograd runs for no tensors of one."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        for node in graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = tree_map_only(torch.Tensor, _there, node.meta["val"])
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": torch.device("cuda:0")}
    return graph


def _there(fake: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="cuda:0")


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients(name):
    function = DIFFERENTIATED[name]

    def gradient(x: torch.Tensor) -> torch.Tensor:
        loss = (function(x) * 3).square().sum()
        return torch.autograd.grad(loss, x)[0]

    x = torch.randperm(54).reshape(6, 9).float().requires_grad_()
    traced = fx.symbolic_trace(lambda x: (gradient(x),))
    graph = lower(_on_gpu(run_passes(to_aten(traced, [x])).graph))
    assert not external_ops(graph)
    (found,) = interpret(graph, [x.detach()])
    torch.testing.assert_close(found, gradient(x))
