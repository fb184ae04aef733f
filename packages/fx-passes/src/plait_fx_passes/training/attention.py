"""Attention whose backward computes scores again, rather than keep a matrix of them.

In a joint graph attention is a product of queries and keys, what is computed of it pair by pair, a
softmax, and a product of its weights and values; the backward reads the weights. Here it gets them
from the scores, which it computes again, and the logarithm of the sum of each row's exponentials,
one number for a row or two, which the forward saves (`row_sums.py`). What rows of the softmax's
gradient are less than is the product of the result and its gradient, rather than that of weights
and theirs (Dao et al., *FlashAttention*, 2022). All else is as differentiated: the gradient of a
score function is what autograd makes of it.

Schedulers find such products and compute them block by block, and beside them the sums over pairs
that are the gradients of what a score function captures (`pair_sums.py`). Where something else
reads what is computed for all pairs, nothing is gained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from plait_fx_passes.aten_graph import copy_graph
from plait_fx_passes.layouts import same_strides
from plait_fx_passes.record.interpreter import fake_mode_of
from plait_fx_passes.training.costs import Kind, recompute_cost
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.pair_sums import PairSum, pair_sums, write_sum
from plait_fx_passes.training.reading import ancestors
from plait_fx_passes.training.row_sums import row_sums
from plait_fx_passes.verifier import recompute
from plait_utils import dataclass

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.expand.default)
_LONGEST_ROW = 256
"""Elements of queries and values that kernels take."""
_FEWEST_ROWS = 8
"""With fewer queries or keys a product of matrices is one of vectors, which is read once."""


class _LeftError(Exception):
    """Why an attention's backward stays what it is."""


@dataclass(frozen=True, slots=True)
class KeptAttention:
    """A joint graph whose attention keeps no matrix of weights.

    Attributes:
        joint: the graph; the one that was given where nothing was found.
        count: how many attentions it has that were changed.
        left: why other softmaxes between products stay what they are, each with the user's line,
            if that is known.
    """

    joint: JointGraph
    count: int
    left: tuple[tuple[str, str | None], ...]


def keep_attention(
    joint: JointGraph, *, everywhere: bool = False, deterministic: bool = False
) -> KeptAttention:
    """Let the backward of attention compute its scores again.

    Args:
        joint: forward and backward in one graph, which is not changed.
        everywhere: also where less is saved and more computed: on CPUs, which have no kernels for
            what the backward then computes, and in float32, of which products are faster.
        deterministic: leave attention of which pairs are added to computed places, in any order.
    """
    if not any(_is_softmax(node) for node in joint.graph.nodes):
        return KeptAttention(joint, 0, ())
    graph = copy_graph(joint.graph)
    late = _late(joint.replace_graph(graph))
    left: list[tuple[str, str | None]] = []
    count = 0
    for node in list(graph.nodes):
        if not _is_softmax(node) or node in late:
            continue
        if not everywhere and node.meta["val"].device.type != "cuda":
            continue
        try:
            attention = _attention(node, late)
            if attention is None:
                continue
            attention.check(everywhere, deterministic)
        except _LeftError as reason:
            left.append((str(reason), node.meta.get("source_line")))
        else:
            _rewrite(attention)
            count += 1
    if not count:
        return KeptAttention(joint, 0, tuple(left))
    graph.lint()
    return KeptAttention(joint.replace_graph(graph), count, tuple(left))


def _is_softmax(node: fx.Node) -> bool:
    return node.target is aten._softmax.default


def _late(joint: JointGraph) -> set[fx.Node]:
    """What only the backward computes, but for what checkpoints compute again."""
    forward = ancestors(joint.program.results[: joint.result_count])
    found = set(joint.graph.find_nodes(op="placeholder")[joint.input_count :])
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in forward:
            continue
        if "recomputed" not in node.meta or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


@dataclass(frozen=True, slots=True)
class _Attention:
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
        """Raise _LeftError where there is no kernel for it, or none that is faster."""
        value = self.product.meta["val"]
        if deterministic and any(each.is_placed for each in self.summed):
            raise _LeftError("gradients of scores are added up in any order")
        if self.result.meta["val"].dtype is torch.float32 and not everywhere:
            raise _LeftError("products of float32 are faster than kernels of its gradients")
        if value.dtype is not torch.float32:
            raise _LeftError(f"there is no kernel for scores of {value.dtype}")
        if any(isinstance(n, int) and n < _FEWEST_ROWS for n in value.shape[-2:]):
            raise _LeftError("there are few queries or keys")
        for node in (self.product.args[0], self.result):
            size = node.meta["val"].shape[-1]  # type: ignore[union-attr]  # a graph's node
            if not isinstance(size, int) or not 0 < size <= _LONGEST_ROW:
                raise _LeftError(f"its rows have {size} elements")


def _attention(softmax: fx.Node, late: set[fx.Node]) -> _Attention | None:
    """The attention around a softmax; None where it is no part of one that is differentiated."""
    scores = softmax.args[0]
    assert isinstance(scores, fx.Node)
    value = scores.meta["val"]
    if softmax.args[1] not in (-1, value.dim() - 1) or value.dtype != softmax.meta["val"].dtype:
        return None
    if any(type(size) is not int for size in value.shape):
        if value.dim() < 3:
            return None
        raise _LeftError("only a call knows its sizes")
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
        raise _LeftError("gradients of its scores are multiplied with each other")
    return _Attention(
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
    """Raise _LeftError where the forward needs scores beside their softmax, or not pair by pair."""
    known = {*inner, softmax, *(() if empty is None else empty.all_input_nodes)}
    for node in inner:
        if node is not inner[0] and not _is_pairwise(node, inner[-1]):
            raise _LeftError(f"{node.target} computes its scores of more than one pair")
        for user in node.users:
            if user not in late and user not in known:
                raise _LeftError(f"{user.target} reads its scores")


def _sums(used: set[fx.Node]) -> fx.Node:
    """The sums over rows of weights times their gradients."""
    for node in used:
        for user in node.users:
            if node.target is not aten.mul.Tensor or user.target is not aten.sum.dim_IntList:
                continue
            rank = node.meta["val"].dim()
            if user.args[1] in ([-1], [rank - 1]) and user.args[2:] == (True,) and not user.kwargs:
                return user
    raise _LeftError("its backward is no softmax's")


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
    raise _LeftError("the gradient of its weights is not one product")


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
    _LeftError where anything but products and sums reads it."""
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
            raise _LeftError(f"{node.target} reads gradients of each score{where}")
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


class _Writer:
    """Makes calls before a node, at its user's line."""

    def __init__(
        self, before: fx.Node, mode: FakeTensorMode, like: fx.Node | None = None, **meta: object
    ) -> None:
        self._before, self._mode = before, mode
        self._meta = {**(like or before).meta, **meta}
        self._meta.pop("val", None)

    def __call__(self, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        graph = self._before.graph
        with graph.inserting_before(self._before):
            made = graph.create_node("call_function", op, args, kwargs)
        made.meta = dict(self._meta)
        made.meta["val"] = recompute(self._mode, made)
        return made


def _rewrite(attention: _Attention) -> None:
    """Let the backward compute weights of scores, and these of queries and keys."""
    mode = fake_mode_of([attention.product.meta["val"]])
    sums = _row_sums(attention, mode)
    uses = [
        user
        for node in (*attention.scores, *attention.weights)
        for user in node.users
        if user in attention.late
    ]
    order = {node: place for place, node in enumerate(attention.product.graph.nodes)}
    first = min(uses, key=order.__getitem__)
    copies = _copies(attention, sums, first, mode)
    for node, copy in copies.items():
        node.replace_all_uses_with(copy, delete_user_cb=attention.late.__contains__)
    _sum_results(attention, mode)
    for product in attention.turned:
        _with_pairs_first(product, mode)
    for each in attention.summed:
        _sum_last(each, mode)


def _row_sums(attention: _Attention, mode: FakeTensorMode) -> tuple[fx.Node, ...]:
    """What scores are less than weights, as `row_sums` gives it."""
    call = _Writer(attention.softmax.next, mode, attention.softmax)
    after = call
    if attention.empty is not None:
        after = _Writer(attention.weights[1], mode)  # it is known there which rows are empty
    scores = attention.softmax.args[0]
    assert isinstance(scores, fx.Node)
    return row_sums(scores, attention.scores, attention.empty, call, after)


def _copies(
    attention: _Attention, sums: Sequence[fx.Node], before: fx.Node, mode: FakeTensorMode
) -> Mapping[fx.Node, fx.Node]:
    """What the backward reads of scores and weights, computed again before a node."""
    copies: dict[fx.Node, fx.Node] = {}

    def again(node: fx.Node) -> fx.Node:
        args = fx.node.map_arg(node.args, lambda each: copies.get(each, each))
        kwargs = fx.node.map_arg(node.kwargs, lambda each: copies.get(each, each))
        assert isinstance(node.target, OpOverload)
        return _Writer(before, mode, node, recomputed=True)(node.target, *args, **kwargs)

    for node in attention.scores:
        copies[node] = again(node)
    scores = attention.softmax.args[0]
    assert isinstance(scores, fx.Node)
    call = _Writer(before, mode, attention.softmax, recomputed=True)
    below = copies[scores]
    for each in sums:
        below = call(aten.sub.Tensor, below, each)
    weights = call(aten.exp.default, below)
    for node in attention.weights:
        is_weights = node is attention.softmax or node.target is aten.where.self
        copies[node] = weights if is_weights else again(node)
    return copies


def _sum_results(attention: _Attention, mode: FakeTensorMode) -> None:
    """Sum the products of the result and its gradient rather than those of weights and theirs."""
    sums = attention.sums
    value, call = sums.meta["val"], _Writer(sums, mode)
    wide = [
        node
        if node.meta["val"].dtype is value.dtype
        else call(aten._to_copy.default, node, dtype=value.dtype)
        for node in (attention.gradient, attention.result)
    ]
    found = call(aten.sum.dim_IntList, call(aten.mul.Tensor, *wide), [-1], True)
    sums.replace_all_uses_with(call(aten.view.default, found, list(value.shape)))
    _drop(sums)


def _with_pairs_first(product: fx.Node, mode: FakeTensorMode) -> None:
    """Let the second factor of a product, which is computed for pairs, be the first one."""
    call = _Writer(product, mode)
    turned = [call(aten.permute.default, each, [0, 2, 1]) for each in reversed(product.args)]
    found = call(aten.permute.default, call(aten.bmm.default, *turned), [0, 2, 1])
    product.replace_all_uses_with(found)
    _drop(product)
    _lay_out(found, mode)


def _sum_last(found: PairSum, mode: FakeTensorMode) -> None:
    """Let a sum of pairs come behind what is done to its terms."""
    end = found.end
    made = write_sum(found, _Writer(end, mode))
    end.replace_all_uses_with(made)
    strides = same_strides(end.meta["val"], made.meta["val"])
    _drop(end)
    if not strides:
        _lay_out(made, mode)


def _lay_out(start: fx.Node, mode: FakeTensorMode) -> None:
    """Compute fake values anew of what depends on a node that lies otherwise than before; what is
    no view of it then gets a copy."""
    moved, node = {start}, start
    while node.next.op != "output":
        node = node.next
        read = [each for each in node.all_input_nodes if each in moved]
        if not read:
            continue
        try:
            value = recompute(mode, node)
        except RuntimeError:
            call = _Writer(node, mode)
            for each in read:
                copy = call(aten.clone.default, each, memory_format=torch.contiguous_format)
                node.replace_input_with(each, copy)
            value = recompute(mode, node)
        before, node.meta["val"] = node.meta["val"], value
        if not isinstance(value, torch.Tensor) or not same_strides(before, value):
            moved.add(node)


def _drop(node: fx.Node) -> None:
    """Take a node that nothing uses out of its graph, and what only it used."""
    sources = node.all_input_nodes
    node.graph.erase_node(node)
    for each in sources:
        if not each.users and each.op == "call_function" and each._erased is False:
            _drop(each)
