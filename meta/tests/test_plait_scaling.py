"""Training steps with `torch.amp.GradScaler`: two programs around the one decision of a step,
and one where a fused optimizer decides."""

from __future__ import annotations

import math

import pytest
import torch

import plait


def training(make, *, clip):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step, model, optimizer, scaler


READ = True
"""Whether Python reads what the scaler has found, for which torch has had several ways."""


@pytest.mark.parametrize(
    ("make", "clip", "breaks"),
    [
        (torch.optim.AdamW, True, READ),
        (lambda p: torch.optim.SGD(p, 0.1, 0.9), False, READ),
        # Fused ones are told what the scaler has found: nobody else has to know it.
        (lambda p: torch.optim.AdamW(p, fused=True), True, False),
        (lambda p: torch.optim.SGD(p, 0.1, 0.9, fused=True), False, False),
    ],
)
@pytest.mark.sampled(2)
def test_steps_are_skipped_and_scales_change_as_in_eager(make, clip, breaks):
    eager, ours = training(make, clip=clip), training(make, clip=clip)
    fast = plait.compile(ours[0])
    generator = torch.Generator().manual_seed(1)
    scales = []
    for number in range(7):
        x = torch.randn(4, 6, generator=generator)
        y = torch.randn(4, 3, generator=generator)
        if number in (2, 5):
            x[0, 0] = math.inf
        torch.testing.assert_close(fast(x, y), eager[0](x, y), equal_nan=True)
        for one, two in zip(ours[1].parameters(), eager[1].parameters(), strict=True):
            torch.testing.assert_close(one, two)
            torch.testing.assert_close(one.grad, two.grad, equal_nan=True)
        assert ours[3].state_dict() == eager[3].state_dict()
        scales.append(ours[3].get_scale())
    assert len(set(scales)) > 1
    counts = [each["state"] for each in (ours[2].state_dict(), eager[2].state_dict())]
    assert [s.get("step") for s in counts[0].values()] == [
        s.get("step") for s in counts[1].values()
    ]
    report = plait.report(fast)
    assert {graph.outcome for graph in report.graphs} == {"compiled"}
    codes = {each.code for each in report.breaks}
    assert len(codes) == breaks
    assert codes <= {"GB0003", "GB0004"}
