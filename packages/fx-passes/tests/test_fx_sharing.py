"""Inputs that share memory to which the program writes, beside others that need gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import plait_fx_passes as fx_passes
from plait_fx_passes import AtenTraceError


def compiled(program: Callable[..., Any], *given: torch.Tensor) -> Callable[..., Any]:
    module = torch.fx.symbolic_trace(program)
    joint = fx_passes.to_joint(module, given)
    fx_passes.verify(joint.flat())
    parts = fx_passes.partition(joint)
    forward, backward = parts.forward.module(), parts.backward.module()
    return fx_passes.wrap_training(joint, parts, forward, backward, module)


def arguments() -> list[torch.Tensor]:
    torch.manual_seed(0)
    base = torch.randn(6)
    return [torch.randn(3, requires_grad=True), base[:4], base[2:]]


def test_writes_are_eager_s_where_no_gradient_needs_the_memory() -> None:
    def program(w: Any, x: Any, y: Any) -> Any:
        x.add_(1)
        y.mul_(2)
        return (w * w).sin(), x + y.sum(), x.view(-1)

    ours, eager = arguments(), arguments()
    got, wanted = compiled(program, *arguments())(*ours), program(*eager)
    for one, two in zip([*got, *ours], [*wanted, *eager], strict=True):
        torch.testing.assert_close(one, two)
        assert one.requires_grad is two.requires_grad
    got[0].sum().backward()
    wanted[0].sum().backward()
    torch.testing.assert_close(ours[0].grad, eager[0].grad)


@pytest.mark.parametrize(
    "program",
    [
        lambda w, x, y: (w * y[:3], x.add_(1)),
        lambda w, x, y: (x.add_(1), w * y[:3]),
        lambda w, x, y: (x[:3].add_(w), y * 2),
        lambda w, x, y: (x.zero_(), w * x[:3]),
    ],
)
def test_what_gradients_need_there_is_refused(program: Callable[..., Any]) -> None:
    with pytest.raises(AtenTraceError, match=r"memory that|inputs share"):
        compiled(program, *arguments())


def test_geometry_changes_of_what_shares_memory_are_refused() -> None:
    def program(w: Any, x: Any, y: Any) -> Any:
        x.add_(1)
        x.unsqueeze_(0)
        return y.sum()

    module = torch.fx.symbolic_trace(program)
    with pytest.raises(AtenTraceError, match="geometry of an input whose memory"):
        fx_passes.to_aten(module, [each.detach() for each in arguments()])


def test_geometry_changes_of_what_may_be_another_input_too_are_refused() -> None:
    def program(x: Any, y: Any) -> Any:
        x.t_()
        return y * 2

    x = torch.ones(2, 3)
    module = torch.fx.symbolic_trace(program)
    with pytest.raises(AtenTraceError, match="geometry of an input whose memory"):
        fx_passes.to_aten(module, [x, x])
    assert fx_passes.to_aten(module, [x, x.clone()]).metadata_mutations
