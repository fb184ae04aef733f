"""The operators of gradient scaling, recorded in plain ones: bit for bit what kernels compute."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import plait_fx_passes as fx_passes


def compiled(program: Any, *given: torch.Tensor) -> Any:
    graph = fx_passes.to_aten(torch.fx.symbolic_trace(program), given)
    fx_passes.verify(graph)
    targets = {str(node.target) for node in graph.graph.nodes}
    assert not any("_amp_" in each for each in targets)
    return fx_passes.wrap_runtime(graph, graph.module())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [None, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("scale", [1.0, 3.0, 65536.0])
def test_unscaled_gradients_and_the_flag(dtype: torch.dtype, bad: Any, scale: float) -> None:
    def program(one: Any, two: Any, found: Any, inverse: Any) -> Any:
        torch._amp_foreach_non_finite_check_and_unscale_([one, two], found, inverse)
        return found + 1

    def arguments() -> list[torch.Tensor]:
        torch.manual_seed(0)
        one, two = torch.randn(3, 4).to(dtype) * scale, torch.randn(5).to(dtype)
        if bad is not None:
            two[2] = bad
        inverse = torch.tensor(scale).double().reciprocal().float()
        return [one, two, torch.zeros(()), inverse]

    run = compiled(program, *arguments())
    got, wanted = arguments(), arguments()
    results = [run(*got), program(*wanted)]
    for one, two in zip([results[0], *got], [results[1], *wanted], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("scale", [1024.0, 1.7, 2.0**127, 1e-45])
@pytest.mark.parametrize("tracker", [0, 1, 2])
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_the_scale_grows_and_backs_off(scale: float, tracker: int, found: float) -> None:
    def program(scale: Any, tracker: Any, found: Any) -> Any:
        return torch._amp_update_scale_(scale, tracker, found, 2.3, 0.45, 3)

    def arguments() -> list[torch.Tensor]:
        return [
            torch.tensor(scale),
            torch.tensor(tracker, dtype=torch.int32),
            torch.tensor(found),
        ]

    run = compiled(program, *arguments())
    got, wanted = arguments(), arguments()
    assert run(*got) is got[0]
    program(*wanted)
    for one, two in zip(got, wanted, strict=True):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
