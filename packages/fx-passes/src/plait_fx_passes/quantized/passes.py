"""The pass over products of quantized matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.cleanup import COMMON_SUBEXPRESSIONS, DEAD_CODE
from plait_fx_passes.passes.noops import REMOVE_NOOPS
from plait_fx_passes.passes.views import MERGE_VIEWS
from plait_fx_passes.quantized.integer_products import multiplies_integers
from plait_fx_passes.quantized.packed_weights import LOOP_ROWS, ROWS, multiplies_packed

Rule: TypeAlias = Callable[[PassContext, fx.Node], bool]


def quantizing(
    name: str, rows: Mapping[str, Mapping[tuple[str, torch.dtype], int]] = ROWS, doc: str = ""
) -> Pass:
    """A pass over products of quantized matrices.

    Args:
        name: of the pass.
        rows: by the type of a device, and by way and dtype, up to how many rows are multiplied with
            weights that stay packed.
        doc: what is said of the pass.
    """
    rules: dict[str, Rule] = {
        "integer-product": multiplies_integers,
        "packed-weight": lambda context, node: multiplies_packed(context, node, rows),
    }

    def rewrite(context: PassContext) -> None:
        """Let each product be computed by the first rule that can."""
        for node in list(context.graph.nodes):
            for rule_name, rule in rules.items():
                if node.users and rule(context, node):
                    context.matches[rule_name] += 1
                    break
        if context.matches:
            for each in (REMOVE_NOOPS, MERGE_VIEWS, COMMON_SUBEXPRESSIONS, DEAD_CODE):
                each.rewrite(context)

    return Pass(name, rewrite, doc)


QUANTIZED_PRODUCTS = quantizing(
    "quantized-products",
    doc="products of quantized matrices in int32, and with weights that ATen's kernels take packed",
)
QUANTIZED_LOOP_PRODUCTS = quantizing(
    "quantized-products",
    LOOP_ROWS,
    doc="products of quantized matrices in int32, and with packed weights that loops read",
)
