"""Small networks of plain layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads.case import Case, Workload, of_module


class _Stack(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = norm(F.gelu(linear(x)))
        return x


def _stack() -> Case:
    return of_module(_Stack(256, 8), torch.randn(64, 256))


def _tiny() -> Case:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    return of_module(model, torch.randn(4, 16))


ROWS = (
    Workload("stack", "8×(Linear 256, GELU, LayerNorm), batch 64", _stack, "others"),
    Workload("tiny", "Linear 16, ReLU, Linear 16, batch 4", _tiny, "others"),
)
