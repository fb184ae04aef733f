"""Casts on that side of copies on which less is copied.

A cast commutes with what only moves elements. One that widens comes behind it, one that narrows
before it, so that the copy reads and writes the narrower type: `cat` of tensors cast alike is the
cast of their `cat`. Every bit stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import Calls
from plait_fx_passes.passes.casts import overflows
from plait_fx_passes.passes.noops import same_tensor

aten = torch.ops.aten

# Operators that copy elements of their first argument and compute nothing.
_COPYING = frozenset(
    {
        *(aten.cat.default, aten.clone.default, aten.flip.default, aten.roll.default),
        *(aten.index_select.default, aten.gather.default, aten.index.Tensor),
        aten.embedding.default,
    }
)

_FOR_ALL_DTYPES = frozenset({aten.cat.default, aten.clone.default})
_EVERYWHERE = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    }
)
"""Dtypes that all of these operators have kernels for; `flip` and `gather` have none for others."""


# Views that may stand between a copy and a cast that widens.
_VIEWS = frozenset(
    {
        *(aten.permute.default, aten.unsqueeze.default, aten.squeeze.dims, aten.slice.Tensor),
        *(aten.select.int, aten.view.default, aten.expand.default),
    }
)


def _copies(node: fx.Node, dtype: torch.dtype) -> bool:
    """Whether what a call copies may be of a dtype."""
    return dtype in _EVERYWHERE or node.target in _FOR_ALL_DTYPES


def _is_cast(node: object) -> bool:
    """Whether a node changes the dtype of a tensor, and nothing else."""
    if not isinstance(node, fx.Node) or node.target is not aten._to_copy.default:
        return False
    if not isinstance(node.args[0], fx.Node) or not set(node.kwargs) <= {"dtype"}:
        return False
    value, source = node.meta["val"], node.args[0].meta["val"]
    if overflows(source.dtype, value.dtype):
        return False
    return value.device == source.device and surely_equal(value.stride(), source.stride())


def _bytes(node: fx.Node) -> int:
    return cast(int, node.meta["val"].dtype.itemsize)


def _source(node: fx.Node) -> fx.Node:
    return cast(fx.Node, node.args[0])


def _moved(node: fx.Node) -> list[fx.Node]:
    """The tensors whose elements a call copies."""
    first = node.args[0]
    return list(cast("Sequence[fx.Node]", first)) if isinstance(first, (list, tuple)) else [
        cast(fx.Node, first)
    ]  # fmt: skip


def _again(node: fx.Node) -> bool:
    return "recomputed" in node.meta


def _call(call: Calls, like: fx.Node, sources: list[fx.Node]) -> fx.Node:
    """What a call does, to other tensors."""
    first = sources if isinstance(like.args[0], (list, tuple)) else sources[0]
    return call(cast(OpOverload, like.target), first, *like.args[1:], **like.kwargs)


def _rewrite(
    context: PassContext, node: fx.Node, make: Callable[[Calls], fx.Node], rule: str
) -> bool:
    call = Calls(context, node, NARROW_COPIES.name)
    try:
        result = make(call)
    except (RuntimeError, ValueError):
        call.erase()
        return False
    if same_tensor(node, result) and context.replace(node, result):
        context.matches[rule] += 1
        return True
    call.erase()
    return False


def _behind(context: PassContext, node: fx.Node) -> None:
    """Copy first what was widened, then widen it."""
    chains = [_chain(part, node) for part in _moved(node)]
    if not chains or any(chain is None for chain in chains):
        return
    casts = [chain[-1] for chain in chains if chain]
    dtypes = {(_source(each).meta["val"].dtype, each.meta["val"].dtype) for each in casts}
    if len(dtypes) != 1 or _bytes(_source(casts[0])) >= _bytes(casts[0]):
        return
    if not _copies(node, _source(casts[0]).meta["val"].dtype):
        return

    def make(call: Calls) -> fx.Node:
        narrow = []
        for chain in chains:
            assert chain is not None
            value = _source(chain[-1])
            for view in reversed(chain[:-1]):
                value = _call(call, view, [value])
            narrow.append(value)
        copied = _call(call, node, narrow)
        return call(aten._to_copy.default, copied, dtype=node.meta["val"].dtype)

    _rewrite(context, node, make, "widen-behind-copies")


def _chain(part: fx.Node, node: fx.Node) -> list[fx.Node] | None:
    """The views of a cast that a call copies, outermost first, and the cast; nothing else may need
    any of these, since it would be computed all the same."""
    chain: list[fx.Node] = []
    while True:
        if len(part.users) != 1 or _again(part) != _again(node):
            return None
        chain.append(part)
        if _is_cast(part):
            return chain
        if part.target not in _VIEWS:
            return None
        part = _source(part)


def _before(context: PassContext, node: fx.Node) -> None:
    """Narrow first what a cast narrows that was copied."""
    copy = _source(node)
    alone = len(copy.users) == 1 and copy.target in _COPYING and _again(copy) == _again(node)
    if not alone or _bytes(node) >= _bytes(copy):
        return
    if not _copies(copy, node.meta["val"].dtype):
        return
    parts = _moved(copy)
    dtype = copy.meta["val"].dtype
    # Of what is taken by an index there may be much more than is taken.
    whole = copy.target in (*_WHOLE, aten.cat.default)
    if not whole or any(each.meta["val"].dtype != dtype for each in parts):
        return

    def make(call: Calls) -> fx.Node:
        wanted = node.meta["val"].dtype
        return _call(call, copy, [call(aten._to_copy.default, p, dtype=wanted) for p in parts])

    _rewrite(context, node, make, "narrow-before-copies")


_WHOLE = (aten.clone.default, aten.flip.default, aten.roll.default)


def _narrow_copies(context: PassContext) -> None:
    for node in list(context.graph.nodes):
        if node.users and node.target in _COPYING:
            _behind(context, node)
    for node in reversed(list(context.graph.nodes)):
        if node.users and _is_cast(node):
            _before(context, node)


NARROW_COPIES = Pass(
    "narrow-copies",
    _narrow_copies,
    "widens behind copies and narrows before them, so that less is copied",
)
