"""Several collectives of one kind as one call.

The elements are sent together and results are tensors of their own, as before. A sum over two
processes has the same bits; over more, the backend may add in another order where an element lies
elsewhere in what is sent.
"""

from __future__ import annotations

import operator
from dataclasses import field
from typing import cast

from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.passes.base import Pass, PassContext, made_by
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.collectives.calls import (
    WAIT,
    Kind,
    Start,
    aten,
    is_fence,
    ops,
    size_in_bytes,
    start_of,
)
from plait_fx_passes.passes.noops import same_tensor
from plait_utils import dataclass


def bucket_collectives(
    bucket_bytes: int, gather_bytes: int | None = None, *, in_order: bool = False
) -> Pass:
    """A pass that joins collectives of one kind, group, reduction and dtype.

    Those that are joined start where the last of them did. None is joined with one whose result is
    used before that.

    Args:
        bucket_bytes: how many bytes of operands are joined.
        gather_bytes: the same for all-gathers, if it is another number.
        in_order: whether to join only neighbours, so that the order of collectives stays. Graphs
            must be alike on all processes all the same.
    """
    limits = dict.fromkeys(Kind, bucket_bytes)
    if gather_bytes is not None:
        limits[Kind.GATHER] = gather_bytes

    def bucket(context: PassContext) -> None:
        for members in _buckets(context.graph, limits, in_order):
            _JOINS[members[0].kind](context, members)

    return Pass(
        "collective-buckets",
        bucket,
        "makes collectives that are ready near each other as one, up to a number of bytes",
    )


@dataclass(slots=True)
class _Bucket:
    """Collectives that can be one so far."""

    members: list[Start] = field(default_factory=list)
    size: int = 0


def _buckets(graph: fx.Graph, limits: dict[Kind, int], in_order: bool) -> list[list[Start]]:
    """What to join, in the order of the last members."""
    open_buckets: dict[object, _Bucket] = {}
    key_of: dict[fx.Node, object] = {}
    found: list[list[Start]] = []

    def close(*keys: object) -> None:
        for key in keys:
            bucket = open_buckets.pop(key, None)
            if bucket is not None and len(bucket.members) > 1:
                found.append(bucket.members)

    for node in graph.nodes:
        if node in key_of:  # a wait: what is joined must have started
            close(key_of[node])
        start = start_of(node)
        if is_fence(node) or (start is not None and not _can_join(start)):
            close(*(open_buckets if in_order or start is None else ()))
            continue
        if start is None:
            continue
        key = _key(start)
        if in_order:
            close(*[each for each in open_buckets if each != key])
        size = size_in_bytes(start.operand.meta["val"]) or 0
        if key in open_buckets and open_buckets[key].size + size > limits[start.kind]:
            close(key)
        bucket = open_buckets.setdefault(key, _Bucket())
        bucket.members.append(start)
        bucket.size += size
        key_of.update(dict.fromkeys(start.waits, key))
    close(*open_buckets)
    return found


def _can_join(start: Start) -> bool:
    """Whether a collective is of one dense tensor of known size, and somebody waits for it."""
    if start.is_joint or not start.waits or not isinstance(start.operand, fx.Node):
        return False
    if not all(isinstance(each, (str, int)) for each in start.setting):
        return False
    given, made = start.operand.meta["val"], start.node.meta["val"]
    if not size_in_bytes(given) or not size_in_bytes(made) or given.dtype.is_complex:
        return False
    if start.kind is Kind.SCATTER and not (len(start.waits) == 1 and start.waits[0].users):
        return False
    return bool(given.is_contiguous() and made.is_contiguous())


def _key(start: Start) -> object:
    value = start.operand.meta["val"]
    return start.kind, start.setting, value.dtype, value.device


def _join_calls(op: OpOverload, context: PassContext, members: list[Start]) -> None:
    """One call of several tensors. Backends send what it reduces or gathers as one buffer."""
    if not context.fuel.take():
        return
    last = members[-1].node
    operands = [start.operand for start in members]
    joint = call_before(context, last, op, (operands, *_setting(members)))
    joint.meta["val"] = tuple(joint.meta["val"])
    for position, start in enumerate(members):
        with context.graph.inserting_before(last):
            part = context.graph.create_node(
                "call_function", operator.getitem, (joint, position), name=start.node.name
            )
        part.meta = {**start.node.meta, "val": joint.meta["val"][position]}
        part.meta |= made_by(context.running, start.node)
        start.node.replace_all_uses_with(part)
    context.rewrites += 1
    _erase(context, members)


def _join_rows(context: PassContext, members: list[Start]) -> None:
    """One reduce-scatter of a buffer that has for each process what it gets of all members.

    As a call of several tensors gloo sends each by itself.
    """
    last, first_wait = members[-1].node, min(wait for each in members for wait in each.waits)
    processes = cast(int, members[0].setting[1])
    made: list[fx.Node] = []

    def call(before: fx.Node, op: OpOverload, *args: fx.node.Argument) -> fx.Node:
        made.append(call_before(context, before, op, args))
        return made[-1]

    rows = [call(last, aten.view.default, each.operand, [processes, -1]) for each in members]
    joined = call(last, aten.cat.default, rows, 1)
    flat = call(last, aten.view.default, joined, [-1])
    started = call(last, ops.reduce_scatter_tensor.default, flat, *_setting(members))
    waited = call(first_wait, WAIT, started)
    parts: list[fx.Node] = []
    begin = 0
    for start in members:
        (wait,) = start.waits
        value = wait.meta["val"]
        end = begin + value.numel()
        part = call(wait, aten.slice.Tensor, waited, 0, begin, end)
        part = call(wait, aten.view.default, part, list(value.shape))
        parts.append(call(wait, aten.clone.default, part))
        begin = end
    waits = [start.waits[0] for start in members]
    if not all(map(same_tensor, waits, parts)) or not context.replace_all(waits, parts):
        for node in reversed(made):
            context.graph.erase_node(node)
        return
    for wait in waits:
        context.graph.erase_node(wait)
    _erase(context, members)


def _setting(members: list[Start]) -> tuple[fx.node.Argument, ...]:
    return cast("tuple[fx.node.Argument, ...]", members[0].setting)


def _erase(context: PassContext, members: list[Start]) -> None:
    for start in members:
        context.graph.erase_node(start.node)
    context.matches[members[0].kind.value] += 1


def _reduce(context: PassContext, members: list[Start]) -> None:
    _join_calls(ops.all_reduce_coalesced.default, context, members)


def _gather(context: PassContext, members: list[Start]) -> None:
    _join_calls(ops.all_gather_into_tensor_coalesced.default, context, members)


_JOINS = {Kind.REDUCE: _reduce, Kind.GATHER: _gather, Kind.SCATTER: _join_rows}
"""How collectives of each kind become one: what was measured to be one message, or few."""
