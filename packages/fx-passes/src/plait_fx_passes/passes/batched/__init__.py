"""Independent calls that are alike, as one call over what they take, stacked.

Stacking copies, so that a batch gains where launches are what takes time: on accelerators, of a few
small products or layer norms. On a CPU it does not, and there are no limits for one: the passes
leave its graphs alone. Elementwise calls are batched by limits of one's own alone.
"""

from plait_fx_passes.passes.batched.families import ELEMENTWISE, FAMILIES, NORMS, PRODUCTS, Family
from plait_fx_passes.passes.batched.grouping import LIMITS, Limits, batching

BATCHED_PRODUCTS = batching(
    "batched-products",
    (PRODUCTS,),
    doc="independent products of matrices of the same sizes as one, on accelerators",
)
"""Rounds as the kernel for batches does."""

BATCHES = batching(
    "batches",
    FAMILIES,
    doc="independent products and layer norms of the same sizes as one, on accelerators, for graphs"
    " that ATen's kernels run: loops are fused without copies",
)
"""Rounds as kernels do for what lies elsewhere, and products as the kernel for batches does."""

__all__ = [
    "BATCHED_PRODUCTS",
    "BATCHES",
    "ELEMENTWISE",
    "FAMILIES",
    "LIMITS",
    "NORMS",
    "PRODUCTS",
    "Family",
    "Limits",
    "batching",
]
