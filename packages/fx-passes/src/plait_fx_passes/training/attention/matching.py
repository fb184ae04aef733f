"""Attention and its backward, found in a joint graph."""

from __future__ import annotations

import math

import torch
from torch import fx

from plait_fx_passes.training.attention.pair_sums import PairSum, pair_sums
from plait_fx_passes.training.costs import Kind, recompute_cost
from plait_utils import dataclass

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.expand.default)
_LONGEST_ROW = 256
"""Elements of queries and values that kernels take."""
_FEWEST_ROWS = 8
"""With fewer queries or keys a product of matrices is one of vectors, which is read once."""


class LeftError(Exception):
    """Why an attention's backward stays what it is."""


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention and its backward, node by node."""

    product: fx.Node
    """Of queries and keys."""
    scores: tuple[fx.Node, ...]
    """What the forward computes from `product` up to what the softmax is of, in order."""
    softmax: fx.Node
    empty: fx.Node | None
    """Whether a row has no keys and gets zeros, where that is asked."""
    weights: tuple[fx.Node, ...]
    """The softmax and what is made of it up to `result`, in order."""
    result: fx.Node
    """The product of weights and values."""
    sums: fx.Node
    """Of weights times their gradients, for each row."""
    gradient: fx.Node
    """Of the result, as the backward multiplies it with values."""
    products: tuple[fx.Node, ...]
    """Those of the backward that multiply what is computed for pairs, as their first factor."""
    turned: tuple[fx.Node, ...]
    """Those that do as their second one."""
    summed: tuple[PairSum, ...]
    """Sums of what is computed for pairs."""
    late: frozenset[fx.Node]
    """What the backward computes of all this."""

    def check(self, everywhere: bool, deterministic: bool) -> None:
        """Raise LeftError where there is no kernel for it, or none that is faster."""
        value = self.product.meta["val"]
        if deterministic and any(each.is_placed for each in self.summed):
            raise LeftError("gradients of scores are added up in any order")
        if self.result.meta["val"].dtype is torch.float32 and not everywhere:
            raise LeftError("products of float32 are faster than kernels of its gradients")
        if value.dtype is not torch.float32:
            raise LeftError(f"there is no kernel for scores of {value.dtype}")
        if any(isinstance(n, int) and n < _FEWEST_ROWS for n in value.shape[-2:]):
            raise LeftError("there are few queries or keys")
        for node in (self.product.args[0], self.result):
            size = node.meta["val"].shape[-1]  # type: ignore[union-attr]  # a graph's node
            if not isinstance(size, int) or not 0 < size <= _LONGEST_ROW:
                raise LeftError(f"its rows have {size} elements")


def attention_around(softmax: fx.Node, late: set[fx.Node]) -> Attention | None:
    """The attention around a softmax; None where it is no part of one that is differentiated."""
    scores = softmax.args[0]
    assert isinstance(scores, fx.Node)
    value = scores.meta["val"]
    if softmax.args[1] not in (-1, value.dim() - 1) or value.dtype != softmax.meta["val"].dtype:
        return None
    if any(type(size) is not int for size in value.shape):
        if value.dim() < 3:
            return None
        raise LeftError("only a call knows its sizes")
    found = _weights(softmax, late)
    if found is None:
        return None
    empty, weights, result = found
    used = {user for node in weights for user in node.users if user in late}
    if not used:
        return None
    product = _product_of(scores)
    if product is None:
        return None
    inner = _between(product, scores)
    _check_readers(inner, softmax, empty, late)
    sums = _sums(used)
    gradient = _gradient(sums, weights, result)
    changed = {*inner, *weights}
    pairs, summed = _pairs(changed, late, gradient[1], sums)
    readers = sorted({user for node in pairs for user in node.users if user in late}, key=str)
    readers = [node for node in readers if node.target is aten.bmm.default]
    turned = tuple(node for node in readers if node.args[1] in pairs)
    products = tuple(node for node in readers if node.args[0] in pairs)
    if set(turned) & set(products):
        raise LeftError("gradients of its scores are multiplied with each other")
    return Attention(
        product,
        inner,
        softmax,
        empty,
        weights,
        result,
        sums,
        gradient[0],
        products,
        turned,
        summed,
        frozenset(late),
    )


def _weights(
    softmax: fx.Node, late: set[fx.Node]
) -> tuple[fx.Node | None, tuple[fx.Node, ...], fx.Node] | None:
    """What sets rows without keys to zero, the weights from the softmax on, and what they weight;
    None where no product does so."""
    chain = [softmax]
    empty: fx.Node | None = None
    while True:
        node = chain[-1]
        users = [user for user in node.users if user not in late]
        if len(users) != 1:
            return None
        (user,) = users
        if user.target is aten.bmm.default and user.args[0] is node and user.args[1] is not node:
            return empty, tuple(chain), user
        if user.target is aten.where.self and empty is None and node is softmax:
            condition, zero, kept = user.args
            empty = _empty_rows(condition, softmax)
            if kept is not node or not _is_full(zero, 0) or empty is None:
                return None
        elif user.target not in (*_VIEWS, aten._to_copy.default) or _numel(user) != _numel(softmax):
            return None
        chain.append(user)


def _is_full(node: object, number: float) -> bool:
    if not isinstance(node, fx.Node) or node.target is not aten.full.default:
        return False
    value: object = node.args[1]
    return isinstance(value, int | float) and value == number


def _empty_rows(node: object, softmax: fx.Node) -> fx.Node | None:
    """A condition, where it says that all that the softmax is of is -inf."""
    if not isinstance(node, fx.Node) or node.target is not aten.all.dim:
        return None
    of, dim, *keeps = node.args
    rank = softmax.meta["val"].dim()
    if dim not in (-1, rank - 1) or keeps != [True] or not isinstance(of, fx.Node):
        return None
    is_of_scores = of.target is aten.eq.Scalar and of.args == (softmax.args[0], -math.inf)
    return node if is_of_scores else None


def _product_of(scores: fx.Node) -> fx.Node | None:
    """The product of queries and keys that scores are computed of pair by pair; None for none."""
    found: set[fx.Node] = set()
    waiting, seen = [scores], {scores}
    while waiting:
        node = waiting.pop()
        if node.target is aten.bmm.default:
            found.add(node)
            continue
        if not _is_pairwise(node, scores):
            continue
        fresh = [each for each in node.all_input_nodes if each not in seen]
        seen.update(fresh)
        waiting += fresh
    return next(iter(found)) if len(found) == 1 else None


def _is_pairwise(node: fx.Node, scores: fx.Node) -> bool:
    """Whether a node computes a value for each pair, of values for pairs."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return False
    if value.shape[-2:] != scores.meta["val"].shape[-2:]:
        return False
    return node.target in _VIEWS or recompute_cost(node).kind in (Kind.CHEAP, Kind.FREE)


def _between(product: fx.Node, scores: fx.Node) -> tuple[fx.Node, ...]:
    """What is computed from the product up to the scores, both included, in order."""
    below = {product}
    order: list[fx.Node] = [product]
    node = product
    while node is not scores:
        node = node.next
        if any(each in below for each in node.all_input_nodes):
            below.add(node)
            order.append(node)
    above, waiting = {scores}, [scores]
    while waiting:
        fresh = [n for n in waiting.pop().all_input_nodes if n in below and n not in above]
        above.update(fresh)
        waiting += fresh
    return tuple(node for node in order if node in above)


def _check_readers(
    inner: tuple[fx.Node, ...], softmax: fx.Node, empty: fx.Node | None, late: set[fx.Node]
) -> None:
    """Raise LeftError where the forward needs scores beside their softmax, or not pair by pair."""
    known = {*inner, softmax, *(() if empty is None else empty.all_input_nodes)}
    for node in inner:
        if node is not inner[0] and not _is_pairwise(node, inner[-1]):
            raise LeftError(f"{node.target} computes its scores of more than one pair")
        for user in node.users:
            if user not in late and user not in known:
                raise LeftError(f"{user.target} reads its scores")


def _sums(used: set[fx.Node]) -> fx.Node:
    """The sums over rows of weights times their gradients."""
    for node in used:
        for user in node.users:
            if node.target is not aten.mul.Tensor or user.target is not aten.sum.dim_IntList:
                continue
            rank = node.meta["val"].dim()
            if user.args[1] in ([-1], [rank - 1]) and user.args[2:] == (True,) and not user.kwargs:
                return user
    raise LeftError("its backward is no softmax's")


def _gradient(
    sums: fx.Node, weights: tuple[fx.Node, ...], result: fx.Node
) -> tuple[fx.Node, fx.Node]:
    """The gradient of the result, and its product with values, of which the sums are."""
    terms = sums.args[0]
    assert isinstance(terms, fx.Node)
    others = [each for each in terms.all_input_nodes if each not in weights]
    node = others[0] if len(others) == 1 else None
    while node is not None and node.target in (*_VIEWS, aten._to_copy.default):
        if _numel(node) != _numel(terms):
            break
        node = node.args[0]  # type: ignore[assignment]  # a view's first argument is a node
    if node is not None and node.target is aten.bmm.default:
        gradient, turned = node.args
        if isinstance(gradient, fx.Node) and _untransposed(turned) is result.args[1]:
            return gradient, node
    raise LeftError("the gradient of its weights is not one product")


def _untransposed(node: object) -> object:
    """What a node is the transpose of, matrix by matrix; None for other nodes."""
    if isinstance(node, fx.Node) and node.target is aten.permute.default:
        of, order = node.args
        return of if order == [0, 2, 1] else None
    return None


def _pairs(
    changed: set[fx.Node], late: set[fx.Node], gradient: fx.Node, sums: fx.Node
) -> tuple[set[fx.Node], tuple[PairSum, ...]]:
    """What the backward computes for each pair, and `changed`; and the sums of it. Raises
    LeftError where anything but products and sums reads it."""
    sizes = gradient.meta["val"].shape[-2:]
    shapes = [tuple(sizes), (sizes[1], sizes[0])]
    found = {*changed, gradient}
    summed: dict[PairSum, None] = {}
    waiting = [user for node in found for user in node.users if user in late]
    while waiting:
        node = waiting.pop()
        if node is sums or node in found or node.target is aten.bmm.default:
            continue
        value = node.meta.get("val")
        is_same = isinstance(value, torch.Tensor) and tuple(value.shape[-2:]) in shapes
        is_view = node.target in (*_VIEWS, aten.permute.default)
        if is_same and (is_view or recompute_cost(node).kind is Kind.CHEAP):
            found.add(node)
            waiting += node.users
            continue
        begun = _summed(node, found, tuple(sizes))
        if begun is None:
            line = node.meta.get("source_line")
            where = f" ({line})" if line else ""
            raise LeftError(f"{node.target} reads gradients of each score{where}")
        summed |= dict.fromkeys(begun)
    return found, tuple(summed)


def _summed(
    reader: fx.Node, pairs: set[fx.Node], sizes: tuple[object, ...]
) -> tuple[PairSum, ...] | None:
    """The sums of pairs that a reader begins; None where it is nothing of that."""
    read = [node for node in reader.all_input_nodes if node in pairs]
    if len(read) != 1 or tuple(read[0].meta["val"].shape[-2:]) != sizes:
        return None
    return pair_sums(read[0], reader, pairs)


def _numel(node: fx.Node) -> object:
    return node.meta["val"].numel()
