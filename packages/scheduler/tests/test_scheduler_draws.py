"""What draws on GPUs, beside reductions."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import lower
from plait_scheduler import plan
from plait_utils.philox import UNIFORM
from plait_utils.philox_numbers import NORMAL

SIZE = (512, 1024)
THREADS = 2**12


def noisy(state, x):
    return (torch.softmax(x + NORMAL(state, SIZE, 0, THREADS, torch.float32), -1),)


def dropped(state, x):
    kept = UNIFORM(state, SIZE, 0, THREADS, 4, torch.float32) < 0.5
    return (torch.softmax(x * kept, -1),)


def noisy_behind(state, x):
    return (torch.softmax(x, -1) + NORMAL(state, SIZE, 0, THREADS, torch.float32),)


def a_little_noise(state, x):
    return (torch.softmax(x + NORMAL(state, SIZE, 0, SIZE[0] * SIZE[1], torch.float32), -1),)


def _planned(function, device):
    with FakeTensorMode(allow_non_fake_inputs=True):
        state = torch.empty(2, dtype=torch.int64, device=device)
        x = torch.empty(SIZE, device=device)
        traced = make_fx(function)(state, x)
    return plan(lower(traced))


@pytest.mark.parametrize(
    ("function", "kernels"), [(noisy, 2), (noisy_behind, 2), (dropped, 1), (a_little_noise, 1)]
)
def test_rows_do_not_draw_what_points_share(function, kernels):
    planned = _planned(function, "cuda:0")
    assert len(planned.program.kernels) == kernels
    assert ("rows would draw for each" in planned.explain()) == (kernels == 2)


@pytest.mark.parametrize("function", [noisy, noisy_behind])
def test_a_cpu_shares_nothing(function):
    assert "rows would draw" not in _planned(function, "cpu").explain()
