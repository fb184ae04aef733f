"""The pass over products of quantized matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.cleanup import COMMON_SUBEXPRESSIONS, DEAD_CODE
from plait_fx_passes.passes.noops import REMOVE_NOOPS
from plait_fx_passes.passes.views import MERGE_VIEWS
from plait_fx_passes.quantized.integer_products import multiplies_integers
from plait_fx_passes.quantized.packed_weights import multiplies_packed

Rule: TypeAlias = Callable[[PassContext, fx.Node], bool]

RULES: dict[str, Rule] = {
    "integer-product": multiplies_integers,
    "packed-weight": multiplies_packed,
}
"""What a product may be computed as; the first that can be."""


def _multiply_quantized(context: PassContext) -> None:
    for node in list(context.graph.nodes):
        for name, rule in RULES.items():
            if node.users and rule(context, node):
                context.matches[name] += 1
                break
    if context.matches:
        for each in (REMOVE_NOOPS, MERGE_VIEWS, COMMON_SUBEXPRESSIONS, DEAD_CODE):
            each.rewrite(context)


QUANTIZED_PRODUCTS = Pass(
    "quantized-products",
    _multiply_quantized,
    "products of quantized matrices in int32, and with weights that stay packed",
)
