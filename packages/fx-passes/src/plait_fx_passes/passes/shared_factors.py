"""Sums of matrix products that share a factor, as one product with the sum of the others.

`x @ a + x @ b` is `x @ (a + b)`: half the multiplications for an addition of `a` and `b`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import Calls
from plait_fx_passes.passes.noops import same_tensor
from plait_utils import dataclass

aten = torch.ops.aten

_ENOUGH = 8
"""Rows, or columns, of the shared factor from which on a product costs more than the addition,
which reads and writes the other factors once more."""

_NARROW = frozenset({torch.float16})
"""Dtypes in which a sum of factors may overflow where the sum of products does not."""


@dataclass(frozen=True, slots=True)
class Product:
    """`left @ right`, and a bias; in another shape where it is viewed."""

    left: fx.Node
    right: fx.Node
    bias: fx.Node | None
    viewed: fx.Node | None


def _product(node: object) -> Product | None:
    """The product that a node is and nothing else uses."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None
    if node.target is aten.view.default:
        inner = _product(node.args[0])
        if inner is None or inner.viewed is not None:
            return None
        return Product(inner.left, inner.right, inner.bias, node)
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return None
    bias = node.args[0] if node.target is aten.addmm.default else None
    left, right = node.args[-2:]
    if len(node.args) != (2 if bias is None else 3):
        return None  # it is scaled
    return Product(*cast("tuple[fx.Node, fx.Node, fx.Node]", (left, right, bias)), None)


def _share_factors(context: PassContext) -> None:
    for node in context.graph.nodes:
        if node.target not in (aten.add.Tensor, aten.sub.Tensor) or node.kwargs or not node.users:
            continue
        first, second = map(_product, node.args)
        if first is None or second is None or node.args[0] is node.args[1]:
            continue
        if all(same_tensor(node, cast(fx.Node, each)) for each in node.args):
            _merge(context, node, first, second)


def _merge(context: PassContext, node: fx.Node, first: Product, second: Product) -> None:
    """Let the users of a sum use one product, if the two share a factor that is large enough."""
    if first.left is second.left:
        size = first.left.meta["val"].shape[0]
        others = first.right, second.right
    elif first.right is second.right:
        size = first.right.meta["val"].shape[1]
        others = first.left, second.left
    else:
        return
    one, other = (each.meta["val"] for each in others)
    if not surely_equal(one.shape, other.shape) or one.dtype in _NARROW:
        return
    if type(size) is not int or size < _ENOUGH:
        return
    call = Calls(context, node, SHARED_FACTORS.name)
    combine = cast(OpOverload, node.target)
    joint = call(combine, *others)
    factors = (first.left, joint) if first.left is second.left else (joint, first.right)
    bias = first.bias or second.bias
    if first.bias is not None and second.bias is not None:
        bias = call(combine, first.bias, second.bias)
    elif second.bias is not None and combine is aten.sub.Tensor:
        bias = call(aten.neg.default, second.bias)
    if bias is None:
        result = call(aten.mm.default, *factors)
    else:
        result = call(aten.addmm.default, bias, *factors)
    if first.viewed is not None:
        result = call(aten.view.default, result, first.viewed.args[1])
    if same_tensor(node, result) and context.replace(node, result):
        context.matches[SHARED_FACTORS.name] += 1
    else:
        call.erase()


SHARED_FACTORS = Pass(
    "shared-factors",
    _share_factors,
    "multiplies once where the same matrix is multiplied by several whose products are added",
)
"""Rounds the sum of the factors instead of the products."""
