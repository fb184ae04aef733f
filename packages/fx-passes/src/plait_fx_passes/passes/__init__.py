"""The passes, in ordered tables, and what runs them."""

from typing import TYPE_CHECKING

from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_fx_passes.passes.aligned_products import ALIGNED_PRODUCTS, Alignment, aligning
    from plait_fx_passes.passes.base import Fuel, Pass, PassContext
    from plait_fx_passes.passes.batched import BATCHED_PRODUCTS, BATCHES, Limits, batching
    from plait_fx_passes.passes.bisect import Culprit, find_bad_rewrite
    from plait_fx_passes.passes.casts import MERGE_CASTS
    from plait_fx_passes.passes.cleanup import COMMON_SUBEXPRESSIONS, DEAD_CODE
    from plait_fx_passes.passes.constants import FOLD_CONSTANTS
    from plait_fx_passes.passes.constructors import MOVE_CONSTRUCTORS
    from plait_fx_passes.passes.device_draws import drawing_passes
    from plait_fx_passes.passes.joined_products import PRODUCTS_IN_PARTS
    from plait_fx_passes.passes.joins import JOIN_PIECES
    from plait_fx_passes.passes.manager import (
        DEFAULT_PASSES,
        DRAWING_PASSES,
        IN_PLACE_PASSES,
        KERNEL_PASSES,
        LAYOUT_PASSES,
        LOOP_PASSES,
        NUMERIC_PASSES,
        QUANTIZED_LOOP_PASSES,
        QUANTIZED_PASSES,
        SUM_PASSES,
        PassRecord,
        run_passes,
    )
    from plait_fx_passes.passes.narrow_copies import NARROW_COPIES
    from plait_fx_passes.passes.near_uses import NEAR_USES
    from plait_fx_passes.passes.noops import REMOVE_NOOPS
    from plait_fx_passes.passes.product_chains import PRODUCT_CHAINS
    from plait_fx_passes.passes.shared_factors import SHARED_FACTORS
    from plait_fx_passes.passes.small_first import SMALL_FIRST
    from plait_fx_passes.passes.views import MERGE_VIEWS
else:
    # Rules of patterns and of quantized programs use modules of this folder, and its list of passes
    # them: whichever is imported first.
    __getattr__ = late_exports(
        __name__,
        {
            "plait_fx_passes.passes.aligned_products": [
                "ALIGNED_PRODUCTS",
                "Alignment",
                "aligning",
            ],
            "plait_fx_passes.passes.base": ["Fuel", "Pass", "PassContext"],
            "plait_fx_passes.passes.batched": [
                "BATCHED_PRODUCTS",
                "BATCHES",
                "Limits",
                "batching",
            ],
            "plait_fx_passes.passes.bisect": ["Culprit", "find_bad_rewrite"],
            "plait_fx_passes.passes.casts": ["MERGE_CASTS"],
            "plait_fx_passes.passes.cleanup": ["COMMON_SUBEXPRESSIONS", "DEAD_CODE"],
            "plait_fx_passes.passes.constants": ["FOLD_CONSTANTS"],
            "plait_fx_passes.passes.constructors": ["MOVE_CONSTRUCTORS"],
            "plait_fx_passes.passes.device_draws": ["drawing_passes"],
            "plait_fx_passes.passes.joined_products": ["PRODUCTS_IN_PARTS"],
            "plait_fx_passes.passes.joins": ["JOIN_PIECES"],
            "plait_fx_passes.passes.manager": [
                "DEFAULT_PASSES",
                "DRAWING_PASSES",
                "IN_PLACE_PASSES",
                "KERNEL_PASSES",
                "LAYOUT_PASSES",
                "LOOP_PASSES",
                "NUMERIC_PASSES",
                "QUANTIZED_LOOP_PASSES",
                "QUANTIZED_PASSES",
                "SUM_PASSES",
                "PassRecord",
                "run_passes",
            ],
            "plait_fx_passes.passes.narrow_copies": ["NARROW_COPIES"],
            "plait_fx_passes.passes.near_uses": ["NEAR_USES"],
            "plait_fx_passes.passes.noops": ["REMOVE_NOOPS"],
            "plait_fx_passes.passes.product_chains": ["PRODUCT_CHAINS"],
            "plait_fx_passes.passes.shared_factors": ["SHARED_FACTORS"],
            "plait_fx_passes.passes.small_first": ["SMALL_FIRST"],
            "plait_fx_passes.passes.views": ["MERGE_VIEWS"],
        },
    )

__all__ = [
    "ALIGNED_PRODUCTS",
    "BATCHED_PRODUCTS",
    "BATCHES",
    "COMMON_SUBEXPRESSIONS",
    "DEAD_CODE",
    "DEFAULT_PASSES",
    "DRAWING_PASSES",
    "FOLD_CONSTANTS",
    "IN_PLACE_PASSES",
    "JOIN_PIECES",
    "KERNEL_PASSES",
    "LAYOUT_PASSES",
    "LOOP_PASSES",
    "MERGE_CASTS",
    "MERGE_VIEWS",
    "MOVE_CONSTRUCTORS",
    "NARROW_COPIES",
    "NEAR_USES",
    "NUMERIC_PASSES",
    "PRODUCTS_IN_PARTS",
    "PRODUCT_CHAINS",
    "QUANTIZED_LOOP_PASSES",
    "QUANTIZED_PASSES",
    "REMOVE_NOOPS",
    "SHARED_FACTORS",
    "SMALL_FIRST",
    "SUM_PASSES",
    "Alignment",
    "Culprit",
    "Fuel",
    "Limits",
    "Pass",
    "PassContext",
    "PassRecord",
    "aligning",
    "batching",
    "drawing_passes",
    "find_bad_rewrite",
    "run_passes",
]
