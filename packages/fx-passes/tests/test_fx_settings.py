"""Settings that a program switches are, after its recording, what they were before."""

import pytest
import torch
from torch import fx, nn

from plait_fx_passes import AtenTraceError, to_aten, to_joint


def switching(*, fails: bool = False) -> fx.GraphModule:
    """A program that leaves autocast on, and other settings at other values."""
    graph = fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    graph.call_function(torch.set_autocast_dtype, ("cpu", torch.float16))
    graph.call_function(torch.set_autocast_enabled, ("cpu", True))
    graph.call_function(torch.set_default_dtype, (torch.float64,))
    graph.call_function(torch._C._set_sdp_use_math, (False,))
    product = graph.call_function(torch.matmul, (x, weight))
    graph.output((graph.call_method("nonzero", (product,)) if fails else product,))
    return fx.GraphModule(nn.Module(), graph)


def settings() -> tuple[object, ...]:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch._C._get_math_sdp_enabled(),
    )


@pytest.mark.parametrize("record", [to_aten, to_joint])
@pytest.mark.parametrize("fails", [False, True])
def test_settings_are_as_before(record, fails):
    before = settings()
    inputs = torch.randn(2, 2), torch.randn(2, 2, requires_grad=record is to_joint)
    if fails:
        with pytest.raises(AtenTraceError):
            record(switching(fails=True), inputs)
    else:
        record(switching(), inputs)
    assert settings() == before
