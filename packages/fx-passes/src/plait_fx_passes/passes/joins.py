"""Concatenations of parts of a tensor, and parts of concatenations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.noops import same_tensor
from plait_fx_passes.passes.retargeting import reads_elements, retarget
from plait_fx_passes.passes.row_ranges import Rows, all_rows, rows_of

aten = torch.ops.aten


def _value(node: fx.Node) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def _parts(node: fx.Node) -> Sequence[fx.Node]:
    return cast("Sequence[fx.Node]", node.args[0])


def _dim(node: fx.Node) -> int:
    """Along which dimension a concatenation goes, counted from the front."""
    dim = cast(int, node.args[1]) if len(node.args) > 1 else 0
    return dim % max(_value(node).dim(), 1)


# Concatenations of what lies side by side.


def _join_pieces(context: PassContext, node: fx.Node) -> None:
    """Let a concatenation take as few parts as there are pieces of memory."""
    parts, dim = _flat_parts(node), _dim(node)
    if not parts or any(_value(part).dtype != _value(node).dtype for part in parts):
        return
    pieces: list[Rows] = []
    for part in parts:
        piece = _piece(part, dim)
        if piece is None or not _belong_together(node, piece.source):
            return
        joined = pieces[-1].joined(piece) if pieces else None
        pieces[-1:] = [joined] if joined is not None else [*pieces[-1:], piece]
    if len(pieces) == len(parts) and parts == list(_parts(node)):
        return
    whole = pieces[0].source
    is_whole = len(pieces) == 1 and pieces[0].are_all and same_tensor(node, whole)
    if is_whole and context.replace(node, whole):
        return
    sliced = [_sliced(context, node, piece) for piece in pieces]
    if len(sliced) > 1:
        made = call_before(context, node, aten.cat.default, (sliced, dim))
    else:
        dense = {"memory_format": torch.contiguous_format}
        made = call_before(context, node, aten.clone.default, sliced, dense)
    if same_tensor(made, node):
        context.replace(node, made)


def _flat_parts(node: fx.Node) -> list[fx.Node]:
    """The parts of a concatenation and of those among them, but for empty ones."""
    found: list[fx.Node] = []
    for part in _parts(node):
        if part.target is aten.cat.default and len(part.users) == 1 and _dim(part) == _dim(node):
            found.extend(_flat_parts(part))
        elif not surely_equal(_value(part).shape, (0,)) or _value(part).dtype != _value(node).dtype:
            found.append(part)
    return found


def _piece(part: fx.Node, dim: int) -> Rows | None:
    """A part of a concatenation, as rows of what it is a slice of, or one of the rows."""
    taken = part
    if part.target is aten.unsqueeze.default and part.args[1] == dim:
        taken = cast(fx.Node, part.args[0])
    found = rows_of(taken)
    if found is not None and found.dim == dim and _value(found.source).dim() == _value(part).dim():
        return found
    return all_rows(part, dim) if _value(part).dim() > dim else None


def _belong_together(node: fx.Node, source: fx.Node) -> bool:
    """Whether both are computed the first time, or again, as what a checkpoint leaves out is."""
    is_input = source.op == "placeholder"
    return is_input or ("recomputed" in source.meta) == ("recomputed" in node.meta)


def _sliced(context: PassContext, node: fx.Node, piece: Rows) -> fx.Node:
    if piece.are_all:
        return piece.source
    bounds = (piece.source, piece.dim, piece.start, piece.stop)
    return call_before(context, node, aten.slice.Tensor, bounds)


# Rows of concatenations.


def _read_part(context: PassContext, node: fx.Node) -> None:
    """Let what reads rows of a concatenation read the part that these are of."""
    rows = rows_of(node)
    if rows is None or rows.source.target is not aten.cat.default:
        return
    users = [user for user in node.users if reads_elements(user)]
    part = _part_with(rows) if rows.dim == _dim(rows.source) and users else None
    if part is None or not _belong_together(node, part.source):
        return
    if node.target is aten.select.int:
        made = call_before(context, node, aten.select.int, (part.source, part.dim, part.start))
    else:
        made = _sliced(context, node, part)
    for user in users:
        retarget(context, user, node, made)


def _part_with(rows: Rows) -> Rows | None:
    """The part of a concatenation that has these rows."""
    begin, joined = 0, _value(rows.source)
    for part in _parts(rows.source):
        value = _value(part)
        whole = all_rows(part, rows.dim) if value.dim() == joined.dim() else None
        if whole is None:
            return None
        if begin <= rows.start and rows.stop <= begin + whole.stop:
            found = Rows(part, rows.dim, rows.start - begin, rows.stop - begin)
            return found if value.dtype == joined.dtype else None
        begin += whole.stop
    return None


_RULES: dict[OpOverload, Callable[[PassContext, fx.Node], None]] = {
    aten.cat.default: _join_pieces,
    aten.slice.Tensor: _read_part,
    aten.select.int: _read_part,
}


def _simplify_joins(context: PassContext) -> None:
    for node in context.graph.nodes:
        rule = _RULES.get(node.target)
        if rule is not None and node.users:
            rule(context, node)


JOIN_PIECES = Pass(
    "joins",
    _simplify_joins,
    "joins slices that lie side by side, and reads rows of concatenations where they come from",
)
