"""What the backward of an attention needs of each row, to compute its weights of scores again.

That is the logarithm of the sum of exponentials, of the size of scores. A score may be a number
that stands for a mask, such as -1e9 or the least of a type; where a row has no others, nothing is
left of what is added to it. So the largest score and the logarithm of the sum of the exponentials
below it are apart, unless scores are products alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import fx

aten = torch.ops.aten

Call = Callable[..., fx.Node]

_KEEPING = (aten.view.default, aten.expand.default, aten._to_copy.default, aten.tanh.default)
_MOST = 16.0
"""What scores may be multiplied by and still are as large as products."""


def row_sums(
    scores: fx.Node, computed: Sequence[fx.Node], empty: fx.Node | None, call: Call, after: Call
) -> tuple[fx.Node, ...]:
    """What is to be subtracted from scores, one after the other, so that their exponentials are
    the weights.

    Args:
        scores: `[*Z, M, N]`.
        computed: what `scores` is computed of from a product on, in order, with both.
        empty: whether rows `[*Z, M, 1]` have no keys and are to have weights of 0; None: NaN.
        call: writes where `scores` is known.
        after: writes where `empty` is.
    """
    most = call(aten.amax.default, scores, [-1], True)
    raised = call(aten.exp.default, call(aten.sub.Tensor, scores, most))
    total = call(aten.log.default, call(aten.sum.dim_IntList, raised, [-1], True))
    if all(map(_keeps_size, computed[1:])):
        found = [(call(aten.add.Tensor, total, most), math.inf)]
    else:
        found = [(most, 0.0), (total, math.inf)]
    if empty is None:
        return tuple(node for node, _ in found)
    value = scores.meta["val"]
    chosen: list[fx.Node] = []
    for node, number in found:
        instead = call(aten.full.default, [], number, dtype=value.dtype, device=value.device)
        chosen.append(after(aten.where.self, empty, instead, node))
    return tuple(chosen)


def _keeps_size(node: fx.Node) -> bool:
    """Whether a step from products to scores gives what is as large, in all that is not -inf."""
    if node.target in _KEEPING:
        return True
    if node.target in (aten.mul.Tensor, aten.mul.Scalar):
        return any(abs(_number(each)) <= _MOST for each in node.args[:2])
    if node.target in (aten.div.Tensor, aten.div.Scalar):
        return 1 / _MOST <= abs(_number(node.args[1])) < math.inf
    if node.target is aten.where.self:
        return any(_number(each) == -math.inf for each in node.args[1:])
    return False


def _number(value: object) -> float:
    """A number, or that of a tensor that is full of it; NaN for anything else."""
    if isinstance(value, fx.Node) and value.target is aten.full.default:
        value = value.args[1]
    return float(value) if isinstance(value, int | float) else math.nan
