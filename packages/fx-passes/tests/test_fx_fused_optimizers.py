"""Fused optimizers, recorded in plain operators: what ATen's kernels compute, within roundings."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import fx

import plait_fx_passes as fx_passes

aten = torch.ops.aten
BETAS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def traced(op: Any, lists: list[list[torch.Tensor]], options: dict[str, Any]) -> fx.GraphModule:
    graph, count = fx.Graph(), itertools.count()

    def given(value: Any) -> Any:
        if isinstance(value, list):
            return [given(each) for each in value]
        is_tensor = isinstance(value, torch.Tensor)
        return graph.placeholder(f"a{next(count)}") if is_tensor else value

    graph.call_function(op, tuple(map(given, lists)), {k: given(v) for k, v in options.items()})
    graph.output(())
    return fx.GraphModule(torch.nn.Module(), graph)


def assert_as_eager(op: Any, lists: list[list[torch.Tensor]], **options: Any) -> None:
    gm = traced(op, lists, options)
    flat = [each for group in lists for each in group]
    flat += [each for each in options.values() if isinstance(each, torch.Tensor)]
    got, wanted = ([each.clone() for each in flat] for _ in range(2))
    graph = fx_passes.run_passes(fx_passes.to_aten(gm, flat))
    fx_passes.verify(graph)
    assert not any("_fused" in str(node.target) for node in graph.graph.nodes)
    gm(*wanted)
    fx_passes.wrap_runtime(graph, graph.module())(*got)
    for one, two in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=TOLERANCE[one.dtype], atol=TOLERANCE[one.dtype])


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.rand(37).to(dtype), torch.rand(3, 5).to(dtype)]


COMMON = [
    (0.0, False, (None, None)),
    (0.1, True, (64.0, 0.0)),
    (0.1, False, (64.0, 1.0)),
    (0.1, False, (None, None)),
]
"""Weight decay, whether to maximize, and the scale with what the scaler has found."""


def common(
    decay: float, maximize: bool, scaling: tuple[Any, Any], rate: Any = 0.01
) -> dict[str, Any]:
    scale, found = (None if each is None else torch.tensor(each) for each in scaling)
    given = {"weight_decay": decay, "maximize": maximize, "lr": rate}
    return {**given, "grad_scale": scale, "found_inf": found}


@pytest.mark.parametrize("op", [aten._fused_adam_, aten._fused_adamw_])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.sampled(3)
def test_adam(op: Any, dtype: torch.dtype, amsgrad: bool) -> None:
    torch.manual_seed(0)
    for number, each in enumerate(COMMON):
        steps = [torch.tensor(1.0 + number)] * 2
        lists = [*(tensors(dtype) for _ in range(4)), tensors(dtype) if amsgrad else [], steps]
        assert_as_eager(op.default, lists, **common(*each), **BETAS, amsgrad=amsgrad)
    options = common(0.1, False, (None, None), torch.tensor(0.01))
    assert_as_eager(op.tensor_lr, lists, **options, **BETAS, amsgrad=amsgrad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.sampled(3)
def test_sgd(dtype: torch.dtype, momentum: float, nesterov: bool) -> None:
    torch.manual_seed(0)
    for each, first in itertools.product(COMMON, (False, True)):
        lists = [tensors(dtype), tensors(dtype), tensors(dtype) if momentum else []]
        options = {"momentum": momentum, "nesterov": nesterov, "is_first_step": first}
        dampening = 0.0 if nesterov else 0.2
        assert_as_eager(
            aten._fused_sgd_.default, lists, **common(*each), **options, dampening=dampening
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adagrad(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for number, each in enumerate(COMMON):
        steps = [torch.tensor(1.0 + number)] * 2
        lists = [*(tensors(dtype) for _ in range(3)), steps]
        options = {"lr_decay": 0.1, "eps": 1e-8}
        assert_as_eager(aten._fused_adagrad_.default, lists, **common(*each), **options)
