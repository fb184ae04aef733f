"""One step of generating text: a token in, the cache of keys and values written in place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads.case import Case, Workload

_HEADS, _SHARED, _LONGEST = 8, 2, 256
"""Heads of queries, of keys and values, and the tokens that a cache has room for."""


def _rotate(x: Tensor, position: Tensor) -> Tensor:
    """Rotary position embedding of `x`, [batch, heads, 1, width]."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = position * rates
    cos, sin = angles.cos(), angles.sin()
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = width // _HEADS
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, _SHARED * self.each, bias=False)
        self.values = nn.Linear(width, _SHARED * self.each, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, position: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = x.shape

        def heads(mixed: Tensor) -> Tensor:
            return mixed.view(batch, length, -1, self.each).transpose(1, 2)

        queries = _rotate(heads(self.queries(x)), position)
        keys, values = cache
        keys.index_copy_(2, position, _rotate(heads(self.keys(x)), position))
        values.index_copy_(2, position, heads(self.values(x)))
        seen = torch.arange(_LONGEST) <= position
        found = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen[None, None, None], enable_gqa=True
        )
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = _Attention(width)
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, position: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.before(x), position, cache)
        hidden = self.between(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class Decoder(nn.Module):
    """A language model of Llama's kind with shared keys and values."""

    def __init__(self, width: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(
        self, token: Tensor, position: Tensor, caches: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        x = self.embed(token)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, position, cache)
        return self.head(self.norm(x))


def _decode() -> Case:
    width, depth, vocabulary, position = 512, 4, 8192, 200
    model = Decoder(width, depth, vocabulary).eval()
    shape = (1, _SHARED, _LONGEST, width // _HEADS)
    caches = [(torch.randn(shape), torch.randn(shape)) for _ in range(depth)]
    token = torch.randint(0, vocabulary, (1, 1))
    return Case(model, (token, torch.tensor([position]), caches), model)


ROWS = (
    Workload("decode", "a token through 4 layers d=512, cache of 256 tokens", _decode, "others"),
)
