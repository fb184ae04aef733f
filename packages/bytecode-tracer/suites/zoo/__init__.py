"""Small models with random weights: of `transformers` by modality, of `timm`, `torchvision`."""

from suites.zoo.audio import AUDIO
from suites.zoo.entry import Entry
from suites.zoo.images import installed
from suites.zoo.joint import JOINT
from suites.zoo.mixtures import MIXTURES, STATE_SPACES
from suites.zoo.pairs import ENCODER_DECODERS
from suites.zoo.text import TEXT
from suites.zoo.vision import VISION

__all__ = ["MODELS", "Entry"]


def _by_name(entries: tuple[Entry, ...]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in found:
            raise ValueError(f"the model {entry.name} is listed twice")
        found[entry.name] = entry
    return found


MODELS = _by_name(
    (
        *(*TEXT, *MIXTURES, *STATE_SPACES, *ENCODER_DECODERS, *VISION, *AUDIO, *JOINT),
        *installed(),
    )
)
"""Every model of the suite by its name."""
