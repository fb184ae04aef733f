"""Blocks of a diffusion model's U-Net."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads.case import Case, Workload, of_module


class ResidualBlock(nn.Module):
    """Two convolutions behind group norms; the time of the diffusion is added in between."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(F.silu(self.first_norm(x)))
        hidden = hidden + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.second_norm(hidden)))


class AttentionBlock(nn.Module):
    """Self-attention of all places of an image."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, channels)
        self.mix, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        places = self.norm(x).flatten(2).transpose(1, 2)
        mixed = self.mix(places).view(batch, height * width, 3, self.heads, -1)
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(queries, keys, values)
        found = self.out(found.transpose(1, 2).reshape(batch, height * width, channels))
        return x + found.transpose(1, 2).reshape(batch, channels, height, width)


class UNet(nn.Module):
    """One step down, attention at the bottom, and one step up."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        time = 4 * channels
        self.channels = channels
        self.embed = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.down = ResidualBlock(channels, channels, time)
        self.shrink = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.middle = ResidualBlock(channels, 2 * channels, time)
        self.attention = AttentionBlock(2 * channels, 4)
        self.up = ResidualBlock(3 * channels, channels, time)
        self.norm, self.leave = nn.GroupNorm(8, channels), nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        half = self.channels // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, dtype=x.dtype) / half)
        angles = steps[:, None] * rates
        time = self.embed(torch.cat([angles.sin(), angles.cos()], -1))
        first = self.down(self.enter(x), time)
        low = self.attention(self.middle(self.shrink(first), time))
        back = F.interpolate(low, scale_factor=2.0, mode="nearest")
        last = self.up(torch.cat([back, first], 1), time)
        return self.leave(F.silu(self.norm(last)))


def _unet() -> Case:
    return of_module(UNet(64), torch.randn(2, 4, 32, 32), torch.tensor([10.0, 500.0]))


ROWS = (
    Workload("unet", "diffusion U-Net, 3 residual blocks, attention, 2×4×32×32", _unet, "others"),
)
