"""Training steps in mixed precision: accumulation, clipping, schedules, averages of weights."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from conformance.declare import scenario, t


def _batches(state):
    return [
        (t(4, 3) * scale, torch.tensor([0, 1, 1, 0])) for scale in (1.0, 0.5, 2.0, 1.0, 0.25, 1.5)
    ]


def _normed():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


@scenario(_batches)
def accumulated_and_clipped():
    model = _normed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    counts = {"calls": 0}

    def step(x, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), labels) / 2
        loss.backward()
        counts["calls"] += 1
        if counts["calls"] % 2 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step, (model, optimizer, schedule, counts)


@scenario(_batches)
def averaged():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, labels):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.25)
        return loss.detach()

    return step, (model, average, optimizer)


@scenario(_batches)
def read_inside_the_mode():
    model = _normed()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = []

    def step(x, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
            seen.append(logits.argmax(1).tolist())
            loss = F.cross_entropy(logits, labels)
        seen.append(torch.is_autocast_enabled("cpu"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, (model, optimizer, seen)
