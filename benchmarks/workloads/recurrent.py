"""Recurrent networks: torch's own layers, and cells in a loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.workloads.case import Case, Workload, of_module


class Recurrent(nn.Module):
    """A recurrent layer over a sequence, and a prediction from its last state."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layer(x)
        return self.head(states[:, -1])


class Cells(nn.Module):
    """An LSTM cell that is called for each step of a sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        state = (x.new_zeros(batch, width), x.new_zeros(batch, width))
        for step in range(steps):
            state = self.cell(x[:, step], state)
        return self.head(state[0])


def _lstm() -> Case:
    layer = nn.LSTM(128, 128, num_layers=2, batch_first=True)
    return of_module(Recurrent(layer, 128), torch.randn(8, 32, 128))


def _gru() -> Case:
    layer = nn.GRU(128, 128, batch_first=True)
    return of_module(Recurrent(layer, 128), torch.randn(8, 32, 128))


def _lstm_cells() -> Case:
    return of_module(Cells(128), torch.randn(8, 16, 128))


ROWS = (
    Workload("lstm", "LSTM, 2 layers of 128, 8×32", _lstm, "others"),
    Workload("gru", "GRU, 1 layer of 128, 8×32", _gru, "others"),
    Workload("lstm-cells", "LSTM cell of 128, 16 steps, batch 8", _lstm_cells, "others"),
)
