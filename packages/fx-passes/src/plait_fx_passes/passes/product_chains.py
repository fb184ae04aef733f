"""Chains of matrix products in the order that takes the fewest multiplications.

The dynamic program over where to split a chain: Cormen, Leiserson, Rivest and Stein, Introduction
to Algorithms, "Matrix-chain multiplication".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.cleanup import has_effects
from plait_fx_passes.passes.noops import same_tensor
from plait_utils import dataclass

aten = torch.ops.aten

_LONGEST = 16
"""Products of one chain; longer ones are ordered in parts, which keeps the work linear."""

_WORTH = 0.9
"""What part of the multiplications may be left for another order to be worth its rounding."""

_FACTORS: Mapping[object, slice] = {
    aten.mm.default: slice(0, 2),
    aten.bmm.default: slice(0, 2),
    aten.mv.default: slice(0, 2),
    aten.addmm.default: slice(1, 3),
}
"""Which arguments of a product are its factors."""

_NARROW = frozenset({torch.float16})
"""Dtypes whose range another intermediate product may leave."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A matrix of a chain, to be transposed first or not, or the vector at its end."""

    node: fx.Node
    transposed: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows and columns; a vector has one column."""
        shape = self.node.meta["val"].shape
        rows, columns = (shape[0], 1) if len(shape) == 1 else shape[-2:]
        return (columns, rows) if self.transposed else (rows, columns)


@dataclass(slots=True)
class Chain:
    """The factors of nested products, from left to right, and the products, outermost first."""

    factors: list[Factor]
    products: list[fx.Node]

    @property
    def sizes(self) -> list[int]:
        """The rows of the first factor, then the columns of each."""
        return [self.factors[0].sizes[0], *(each.sizes[1] for each in self.factors)]

    @property
    def multiplications(self) -> int:
        """How many the present order takes, for each matrix of a batch."""
        return sum(_multiplications(product) for product in self.products)


def cheapest_splits(sizes: Sequence[int]) -> tuple[int, dict[tuple[int, int], int]]:
    """The fewest multiplications for a chain, and behind which factor each of its parts is split.

    Factor `i` is a matrix of `sizes[i]` by `sizes[i + 1]`.
    """
    count = len(sizes) - 1
    cost = {(at, at): 0 for at in range(count)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            outer = sizes[first] * sizes[last + 1]
            cost[first, last], split[first, last] = min(
                (cost[first, at] + cost[at + 1, last] + outer * sizes[at + 1], at)
                for at in range(first, last)
            )
    return cost[0, count - 1], split


def _order_chains(context: PassContext) -> None:
    inside: set[fx.Node] = set()
    for node in reversed(list(context.graph.nodes)):
        if node in inside or not node.users or _factors(node) is None:
            continue
        chain = Chain([], [])
        _gather(chain, node, transposed=False)
        inside.update(chain.products)
        if len(chain.products) < 2 or node.meta["val"].dtype in _NARROW:
            continue
        if any(type(size) is not int for size in chain.sizes):
            continue
        fewest, split = cheapest_splits(chain.sizes)
        if fewest < _WORTH * chain.multiplications:
            _reorder(context, node, chain, split)


def _factors(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The factors of a product of matrices, or of a matrix and a vector; None for other nodes."""
    found = _FACTORS.get(node.target)
    if found is not None:
        left, right = node.args[found]
        return cast(fx.Node, left), cast(fx.Node, right)
    return _factors_of_sums(node) if node.target is aten.sum.dim_IntList else None


def _factors_of_sums(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Those of a matrix and a vector that are multiplied element by element, then summed."""
    terms = node.args[0]
    if not isinstance(terms, fx.Node) or terms.target is not aten.mul.Tensor:
        return None
    over_columns = len(node.args) == 2 and node.args[1] in ([1], [-1])
    if not over_columns or len(terms.users) != 1 or terms.kwargs:
        return None
    one, other = terms.args
    if not isinstance(one, fx.Node) or not isinstance(other, fx.Node):
        return None
    left, right = (one, other) if one.meta["val"].dim() == 2 else (other, one)
    matrix, vector = left.meta["val"], right.meta["val"]
    is_product = (
        (matrix.dim(), vector.dim()) == (2, 1)
        and matrix.dtype == vector.dtype == node.meta["val"].dtype
        and surely_equal(matrix.shape[1:], vector.shape)
    )
    return (left, right) if is_product else None


def _multiplications(product: fx.Node) -> int:
    left, right = (each.meta["val"].shape for each in _known_factors(product))
    columns = 1 if len(right) == 1 else right[-1]
    return cast(int, prod(left[-2:]) * columns)


def _known_factors(product: fx.Node) -> tuple[fx.Node, fx.Node]:
    found = _factors(product)
    assert found is not None, product.name
    return found


def _gather(chain: Chain, product: fx.Node, *, transposed: bool) -> None:
    """Add a product to the chain, with those that its factors are."""
    chain.products.append(product)
    left, right = _known_factors(product)
    for each in (right, left) if transposed else (left, right):
        inner, turned = _transposed(each)
        alone = left is not right and len(each.users) == 1 == len(inner.users)
        if alone and len(chain.products) < _LONGEST and _is_link(inner, product):
            _gather(chain, inner, transposed=transposed ^ turned)
        else:
            chain.factors.append(Factor(each, transposed))


def _transposed(node: fx.Node) -> tuple[fx.Node, bool]:
    """What a node is the transpose of, and True; or itself, and False."""
    if node.target is aten.permute.default and node.args[1] in ([1, 0], [0, 2, 1]):
        return cast(fx.Node, node.args[0]), True
    return node, False


def _is_link(inner: fx.Node, outer: fx.Node) -> bool:
    """Whether a product is one, and computed when the other is, not again by a checkpoint."""
    is_product = inner.target is not aten.addmm.default and _factors(inner) is not None
    return is_product and ("recomputed" in inner.meta) == ("recomputed" in outer.meta)


class _Writer:
    """Writes a chain's products in another order."""

    def __init__(self, context: PassContext, root: fx.Node, chain: Chain) -> None:
        self.made: list[fx.Node] = []
        self._context, self._root, self._chain = context, root, chain

    def product(self, first: int, last: int, split: Mapping[tuple[int, int], int]) -> fx.Node:
        """The product of the factors from the first to the last."""
        if first == last:
            return self._factor(self._chain.factors[first])
        at = split[first, last]
        left, right = self.product(first, at, split), self.product(at + 1, last, split)
        if self._root.target is aten.addmm.default and not self._is_part(first, last):
            added = self._root.args[0]
            return self._call(aten.addmm.default, added, left, right, **self._root.kwargs)
        dims = right.meta["val"].dim()
        if dims == 1 and not any(node.target is aten.mv.default for node in self._chain.products):
            terms = self._call(aten.mul.Tensor, left, right)
            return self._call(aten.sum.dim_IntList, terms, [1])
        op = {1: aten.mv.default, 2: aten.mm.default, 3: aten.bmm.default}[dims]
        return self._call(op, left, right)

    def _is_part(self, first: int, last: int) -> bool:
        return (first, last) != (0, len(self._chain.factors) - 1)

    def _factor(self, factor: Factor) -> fx.Node:
        source, is_transpose = _transposed(factor.node)
        if not factor.transposed:
            return factor.node
        if is_transpose:
            return source
        order = [1, 0] if source.meta["val"].dim() == 2 else [0, 2, 1]
        return self._call(aten.permute.default, source, order)

    def _call(self, op: OpOverload, *args: fx.node.Argument, **kwargs: fx.node.Argument) -> fx.Node:
        self.made.append(call_before(self._context, self._root, op, args, kwargs))
        return self.made[-1]


def _reorder(
    context: PassContext, root: fx.Node, chain: Chain, split: Mapping[tuple[int, int], int]
) -> None:
    """Let the users of a chain's last product use one that is computed in another order."""
    writer = _Writer(context, root, chain)
    result = writer.product(0, len(chain.factors) - 1, split)
    if same_tensor(root, result) and context.replace(root, result):
        context.matches[PRODUCT_CHAINS.name] += 1
        _erase(root, stop=frozenset(each.node for each in chain.factors))
    else:
        for node in reversed(writer.made):
            context.graph.erase_node(node)


def _erase(node: fx.Node, stop: frozenset[fx.Node]) -> None:
    """Erase a node that nothing uses, and what only it used, down to the factors."""
    if node in stop or node.users:
        return
    operands = node.all_input_nodes
    node.graph.erase_node(node)
    for each in operands:
        if each.op == "call_function" and not has_effects(each):
            _erase(each, stop)


PRODUCT_CHAINS = Pass(
    "product-chains",
    _order_chains,
    "multiplies chains of matrices of known sizes in the order that takes fewest multiplications",
)
"""Rounds as another order of products does, and where one overflows, another may not."""
