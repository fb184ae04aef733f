"""A model of the suite: how to configure it, and what to call it with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = Callable[[int], dict[str, Any]]
"""Makes the arguments of a call; the number says how large, so that two calls can differ."""

VOCABULARY = 99
SPECIAL: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYERS: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
"""What most transformers understand."""
TINY: Mapping[str, Any] = {**SPECIAL, **LAYERS, "max_position_embeddings": 64}
"""What most text models understand."""
GROUPED: Mapping[str, Any] = {**TINY, "num_key_value_heads": 2, "head_dim": 8}
"""With fewer key heads than query heads."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tiny model: class names in `transformers`, the configuration, the inputs."""

    name: str
    family: str
    config: str
    model: str
    inputs: Inputs
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> torch.nn.Module:
        """The model, in eval mode, with weights that depend on nothing but the entry."""
        import transformers

        config = getattr(transformers, self.config)(**copy.deepcopy(dict(self.settings)))
        torch.manual_seed(0)
        model: torch.nn.Module = getattr(transformers, self.model)(config)
        return model.eval()


def random(size: int, *shape: int) -> torch.Tensor:
    """Normal numbers, the same for the same arguments."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(size))


def tokens(size: int, batch: int, length: int, highest: int = 90) -> torch.Tensor:
    """Token ids above the special ones; the same for the same arguments."""
    generator = torch.Generator().manual_seed(size)
    return torch.randint(3, highest, (batch, length), generator=generator)


def ids(size: int) -> dict[str, Any]:
    """Token ids; sizes 0 and 1 differ in batch and length."""
    return {"input_ids": tokens(size, 2 + size, 7 + 2 * size)}


def even_ids(size: int) -> dict[str, Any]:
    """Token ids in a length that is a multiple of four."""
    return {"input_ids": tokens(size, 2 + size, 8 + 4 * size)}


def eight_ids(size: int) -> dict[str, Any]:
    """Token ids in rows of eight; sizes differ in batch."""
    return {"input_ids": tokens(size, 2 + size, 8)}


def masked(size: int) -> dict[str, Any]:
    """Token ids, the last of the first row masked out."""
    made = ids(size)
    mask = torch.ones_like(made["input_ids"])
    mask[0, -2:] = 0
    return {**made, "attention_mask": mask}


def pairs(size: int) -> dict[str, Any]:
    """Token ids for an encoder and a decoder."""
    return {**ids(size), "decoder_input_ids": tokens(size + 7, 2 + size, 5 + size)}


def even_pairs(size: int) -> dict[str, Any]:
    """As `pairs`, the encoder's in a length that is a multiple of four."""
    return {**even_ids(size), "decoder_input_ids": tokens(size + 7, 2 + size, 5 + size)}


def boxes(size: int) -> dict[str, Any]:
    """Token ids, each with the corners of its box on the page."""
    made = ids(size)
    batch, length = made["input_ids"].shape
    corner = tokens(size + 3, batch, length * 2, 20).view(batch, length, 2)
    return {**made, "bbox": torch.cat([corner, corner + 5], dim=-1)}
