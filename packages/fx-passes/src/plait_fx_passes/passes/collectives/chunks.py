"""Products beside a collective, in chunks: while one is computed, the next is on its way.

`all_gather(x) @ w` and `reduce_scatter(x @ w)`, by rows. A chunk of a gather holds some rows of
each process, so the products are put together by process at the end, and for a reduce-scatter rows
are taken apart by process at the beginning: a copy of the result, or of the operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.collectives.calls import (
    WAIT,
    Kind,
    Start,
    aten,
    size_in_bytes,
    start_of,
)
from plait_fx_passes.passes.noops import same_tensor

ENOUGH = 2**27
"""Multiplications in a chunk's product from which on it takes longer than starting a collective:
some milliseconds of a core, as a message of gloo's may."""

Call = Callable[..., fx.Node]


def chunk_products(chunks: int, *, enough: int = ENOUGH) -> Pass:
    """A pass that takes products behind gathers, and before reduce-scatters, in chunks of rows.

    Only where the rows of each process divide by `chunks`, nothing else needs what is gathered, or
    the product that is scattered, and a chunk has `enough` multiplications. A product of fewer rows
    may round differently.
    """

    def chunk(context: PassContext) -> None:
        for node in list(context.graph.nodes):
            start = start_of(node)
            if start is None or start.is_joint:
                continue
            if start.kind is Kind.GATHER:
                _chunk_gather(context, start, chunks, enough)
            elif start.kind is Kind.SCATTER:
                _chunk_scatter(context, start, chunks, enough)

    return Pass(
        "chunked-collectives",
        chunk,
        "multiplies in chunks what is gathered before, or scattered behind",
    )


def _is_product(node: fx.Node) -> bool:
    return node.target is aten.mm.default and not node.kwargs


def _is_layer(node: fx.Node) -> bool:
    """Whether a node is a product, to each row of which the same bias may be added."""
    if node.target is not aten.addmm.default or node.kwargs or len(node.args) != 3:
        return _is_product(node)
    bias = cast(fx.Node, node.args[0])
    return bool(bias.meta["val"].dim() == 1)


def _divides(left: fx.Node, right: fx.Node, processes: object, chunks: int, enough: int) -> bool:
    """Whether a product's rows can be taken apart, and are worth it."""
    one, other = left.meta["val"], right.meta["val"]
    if size_in_bytes(one) is None or size_in_bytes(other) is None or type(processes) is not int:
        return False
    rows, inner = one.shape
    work = rows * inner * other.shape[1]
    return bool(rows > 0 and rows % (processes * chunks) == 0 and work >= enough * chunks)


def _caller(context: PassContext, made: list[fx.Node]) -> Call:
    def call(before: fx.Node, op: OpOverload, *args: fx.node.Argument) -> fx.Node:
        made.append(call_before(context, before, op, args))
        return made[-1]

    return call


def _chunk_gather(context: PassContext, start: Start, chunks: int, enough: int) -> None:
    """`mm(wait(all_gather(x)), w)`, or `addmm` of a bias."""
    product = _only_user(start.waits[0]) if len(start.waits) == 1 else None
    if product is None or not _is_layer(product) or product.args[-2] is not start.waits[0]:
        return
    *bias, wait, weight = cast("tuple[fx.Node, ...]", product.args)
    processes = cast(int, start.setting[0])
    if wait in (weight, *bias) or not _divides(wait, weight, processes, chunks, enough):
        return
    if not start.operand.meta["val"].is_contiguous():
        return
    rows = start.operand.meta["val"].shape[0] // chunks
    made: list[fx.Node] = []
    call = _caller(context, made)
    parts = [
        call(start.node, aten.slice.Tensor, start.operand, 0, i * rows, (i + 1) * rows)
        for i in range(chunks)
    ]
    gather = cast(OpOverload, start.node.target)
    started = [call(start.node, gather, part, *start.setting) for part in parts]
    products = [_product_of(call, product, each, processes) for each in started]
    joined = call(product, aten.cat.default, products, 1)
    result = call(product, aten.view.default, joined, list(product.meta["val"].shape))
    _settle(context, product, result, made, (product, wait, start.node))


def _product_of(call: Call, product: fx.Node, started: fx.Node, processes: int) -> fx.Node:
    """The product of what a chunk gathers, by process."""
    *bias, _, weight = product.args
    waited = call(product, WAIT, started)
    made = call(product, cast(OpOverload, product.target), *bias, waited, weight)
    return call(product, aten.view.default, made, [processes, -1, made.meta["val"].shape[1]])


def _chunk_scatter(context: PassContext, start: Start, chunks: int, enough: int) -> None:
    """`wait(reduce_scatter(mm(x, w)))`"""
    product = start.operand
    if len(start.waits) != 1 or not _is_product(product) or _only_user(product) is not start.node:
        return
    left, right = cast("tuple[fx.Node, fx.Node]", product.args)
    processes = cast(int, start.setting[1])
    if not _divides(left, right, processes, chunks, enough):
        return
    if not left.meta["val"].is_contiguous():
        return
    rows = left.meta["val"].shape[0] // (processes * chunks)
    inner = left.meta["val"].shape[1]
    (wait,) = start.waits
    made: list[fx.Node] = []
    call = _caller(context, made)
    by_process = call(start.node, aten.view.default, left, [processes, rows * chunks, inner])
    started: list[fx.Node] = []
    for i in range(chunks):
        part = call(start.node, aten.slice.Tensor, by_process, 1, i * rows, (i + 1) * rows)
        dense = call(start.node, aten.clone.default, part)
        flat = call(start.node, aten.view.default, dense, [processes * rows, inner])
        chunk = call(start.node, aten.mm.default, flat, right)
        scatter = cast(OpOverload, start.node.target)
        started.append(call(start.node, scatter, chunk, *start.setting))
    waited = [call(wait, WAIT, each) for each in started]
    result = call(wait, aten.cat.default, waited, 0)
    _settle(context, wait, result, made, (wait, start.node, product))


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _settle(
    context: PassContext,
    node: fx.Node,
    result: fx.Node,
    made: Sequence[fx.Node],
    replaced: Sequence[fx.Node],
) -> None:
    """Use the new result and erase what it replaces, or what was made if it may not stand there."""
    if same_tensor(node, result) and context.replace(node, result):
        context.matches["chunked"] += 1
        gone = replaced
    else:
        gone = tuple(reversed(made))
    for each in gone:
        context.graph.erase_node(each)
