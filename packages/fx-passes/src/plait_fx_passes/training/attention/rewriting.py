"""Attention whose backward computes weights of scores, and these of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from plait_fx_passes.layouts import same_strides
from plait_fx_passes.record.interpreter import fake_mode_of
from plait_fx_passes.training.attention.matching import Attention
from plait_fx_passes.training.attention.pair_sums import PairSum, write_sum
from plait_fx_passes.training.attention.row_sums import row_sums
from plait_fx_passes.verifier import recompute

aten = torch.ops.aten


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


def compute_again(attention: Attention) -> None:
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


def _row_sums(attention: Attention, mode: FakeTensorMode) -> tuple[fx.Node, ...]:
    """What scores are less than weights, as `row_sums` gives it."""
    call = _Writer(attention.softmax.next, mode, attention.softmax)
    after = call
    if attention.empty is not None:
        after = _Writer(attention.weights[1], mode)  # it is known there which rows are empty
    scores = attention.softmax.args[0]
    assert isinstance(scores, fx.Node)
    return row_sums(scores, attention.scores, attention.empty, call, after)


def _copies(
    attention: Attention, sums: Sequence[fx.Node], before: fx.Node, mode: FakeTensorMode
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


def _sum_results(attention: Attention, mode: FakeTensorMode) -> None:
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
