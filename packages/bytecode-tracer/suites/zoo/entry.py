"""A model of the suite: how to configure it, and what to call it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = Callable[[int], dict[str, Any]]
"""Makes the arguments of a call; the number says how large, so that two calls can differ."""

VOCABULARY = 99
TINY: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What most text models understand."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tiny model: class names in `transformers`, the configuration, the inputs."""

    name: str
    family: str
    config: str
    model: str
    inputs: Inputs
    settings: Mapping[str, Any] = field(default_factory=dict)
    nested: Mapping[str, str] = field(default_factory=dict)
    """For settings that are configurations themselves: their class names."""

    def build(self) -> torch.nn.Module:
        """The model, in eval mode, with weights that depend on nothing but the entry."""
        import transformers

        settings = dict(self.settings)
        for name, kind in self.nested.items():
            settings[name] = getattr(transformers, kind)(**settings[name])
        config = getattr(transformers, self.config)(**settings)
        torch.manual_seed(0)
        model: torch.nn.Module = getattr(transformers, self.model)(config)
        return model.eval()


def random(size: int, *shape: int) -> torch.Tensor:
    """Normal numbers, the same for the same arguments."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(size))


def tokens(size: int, batch: int, length: int, highest: int = VOCABULARY) -> torch.Tensor:
    """Token ids above the special ones; the same for the same arguments."""
    generator = torch.Generator().manual_seed(size)
    return torch.randint(3, highest, (batch, length), generator=generator)
