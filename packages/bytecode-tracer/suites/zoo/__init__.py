"""Tiny models of `transformers` with random weights, by modality."""

from suites.zoo.entry import Entry
from suites.zoo.text import ENCODER_DECODERS, TEXT

__all__ = ["MODELS", "Entry"]

MODELS: dict[str, Entry] = {}
for _entry in (*TEXT, *ENCODER_DECODERS):
    if _entry.name in MODELS:
        raise ValueError(f"the model {_entry.name} is listed twice")
    MODELS[_entry.name] = _entry
"""Every model of the suite by its name."""
