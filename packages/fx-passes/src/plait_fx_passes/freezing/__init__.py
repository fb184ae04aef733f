"""Freezing for inference: what follows from parameters alone is computed once, not in each call.

Passes fold batch norms into weights and pack these (`folding`, `packing`, `parallel`); `split`
takes a graph apart into what follows from its frozen inputs alone and the rest; `values` holds what
the former gives and computes it anew when a frozen input has changed.
"""

from plait_fx_passes.freezing.folding import FOLD_BATCH_NORMS
from plait_fx_passes.freezing.packing import PACK_WEIGHTS
from plait_fx_passes.freezing.parallel import MERGE_PRODUCTS
from plait_fx_passes.freezing.split import (
    Frozen,
    can_freeze,
    split_frozen,
    with_frozen_attributes,
    with_held_values,
)
from plait_fx_passes.passes.base import Pass

FOLDING_PASSES: tuple[Pass, ...] = (FOLD_BATCH_NORMS, MERGE_PRODUCTS)
"""Over graphs with frozen inputs, before images are laid out; results are rounded otherwise."""

PACKING_PASSES: tuple[Pass, ...] = (PACK_WEIGHTS,)
"""Over graphs with frozen inputs, behind all others."""

__all__ = [
    "FOLDING_PASSES",
    "FOLD_BATCH_NORMS",
    "MERGE_PRODUCTS",
    "PACKING_PASSES",
    "PACK_WEIGHTS",
    "Frozen",
    "can_freeze",
    "split_frozen",
    "with_frozen_attributes",
    "with_held_values",
]
