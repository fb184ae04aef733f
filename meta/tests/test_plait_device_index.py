"""A wrong index on a GPU is raised, and eager, whose kernels would assert, is not given it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

import plait
from plait.replay import protect
from plait.run_failures import RunFailures


def program(*inputs: Tensor) -> Tensor:
    raise IndexError("index 7 is out of bounds for dimension with size 5")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_eager_is_given_a_wrong_index_on_cpus_alone(device: str) -> None:
    asked = []

    def eager(*inputs: Tensor) -> Tensor:
        asked.append(inputs)
        raise IndexError("as eager says")

    run = protect(program, lambda made: made, fx.Graph(), RunFailures("lookup"), eager)
    with FakeTensorMode():
        given = torch.empty(3, device=device)
    if device == "cpu":
        with pytest.raises(IndexError, match="as eager says"):
            run(given)
        with pytest.raises(RuntimeError):
            run.unchanged_on_error(given)
    else:
        for call in (run, run.unchanged_on_error):
            with pytest.raises(
                plait.DeviceIndexError, match=r"index 7 is out of bounds.* in lookup"
            ):
                call(given)
    assert len(asked) == (device == "cpu")


def test_a_call_is_not_made_again_as_python() -> None:
    calls = []

    def backend(module: fx.GraphModule, inputs: list[Tensor]):
        def run(*given: Tensor):
            raise plait.DeviceIndexError("index 7 is out of bounds")

        return run

    @plait.compile(backend=backend)
    def look_up(x: Tensor) -> Tensor:
        calls.append(len(calls))
        return x.sin()

    with pytest.raises(IndexError, match="index 7"):
        look_up(torch.ones(3))
    assert not calls, "it is not made as Python"
