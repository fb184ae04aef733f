"""What real kernels refuse of operands without elements, fake ones do too."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from plait_utils.fake import FakeMode

REFUSED = [
    lambda x: functional.adaptive_avg_pool2d(x, 3),
    lambda x: functional.adaptive_avg_pool1d(x[0], 3),
    lambda x: functional.interpolate(x, size=(3, 5), mode="bilinear"),
    lambda x: functional.interpolate(x, size=(3, 5), mode="bicubic", align_corners=True),
]
TAKEN = [
    lambda x: x.sum(-1),
    lambda x: x[0, 0] @ x[0, 0].mT,
    lambda x: torch.cat((x, torch.ones(1, 2, 3, 1)), 3),
    lambda x: functional.pad(x, (1, 2)),
    lambda x: x.any(),
    lambda x: x.mean(),
]


@pytest.mark.parametrize("program", REFUSED)
def test_operands_without_elements_are_refused(program):
    given = torch.ones(1, 2, 3, 0)
    with pytest.raises(RuntimeError) as wanted:
        program(given)
    mode = FakeMode()
    fake = mode.from_tensor(given)
    with mode, pytest.raises(RuntimeError) as found:
        program(fake)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("program", TAKEN)
def test_operands_without_elements_may_give_some(program):
    given = torch.ones(1, 2, 3, 0)
    mode = FakeMode()
    with mode:
        made = program(mode.from_tensor(given))
    assert made.numel()
    assert made.shape == program(given).shape
