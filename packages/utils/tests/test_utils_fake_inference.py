"""Fake tensors of what inference mode has made."""

from __future__ import annotations

import pytest
import torch

from plait_utils.fake import FakeMode


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("made_in", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_it_is_of_inference_mode_as_the_tensor_is(
    requires_grad: bool, made_in: bool, within: bool
) -> None:
    with torch.inference_mode(made_in):
        real = torch.nn.Parameter(torch.ones(3), requires_grad)
    with torch.inference_mode(within):
        fake = FakeMode().with_sizes(real)
    assert fake.is_inference() is made_in
    assert fake.requires_grad is requires_grad
