"""Concatenations of parts of a tensor, and parts of concatenations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import cast

import torch
from torch import fx

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.cleanup import value_key
from plait_fx_passes.passes.noops import same_tensor
from plait_fx_passes.passes.retargeting import reads_elements, retarget
from plait_fx_passes.passes.row_ranges import Bound, Rows, all_rows, at_most, plain, rows_of
from plait_utils import dataclass

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


@dataclass(frozen=True, slots=True)
class _Piece:
    """Parts of a concatenation that lie side by side, and the rows that they are together."""

    rows: Rows
    parts: tuple[fx.Node, ...]

    @property
    def is_new(self) -> bool:
        """Whether the rows are taken at once."""
        return len(self.parts) > 1 and self.rows.are_takeable

    def taken(self, context: PassContext, node: fx.Node) -> Sequence[fx.Node]:
        """What a concatenation takes of it, made before a node where it is new."""
        return (_sliced(context, node, self.rows),) if self.is_new else self.parts


def _join_pieces(context: PassContext, node: fx.Node) -> None:
    """Let a concatenation take as few parts as there are pieces of memory."""
    parts, dim = _flat_parts(node), _dim(node)
    if not parts or any(_value(part).dtype != _value(node).dtype for part in parts):
        return
    pieces: list[_Piece] = []
    for part in parts:
        rows = _rows(part, dim)
        if rows is None or not _belong_together(node, rows.source):
            return
        joined = pieces[-1].rows.joined(rows) if pieces else None
        if joined is None:
            pieces.append(_Piece(rows, (part,)))
        else:
            pieces[-1] = _Piece(joined, (*pieces[-1].parts, part))
    if not any(each.is_new for each in pieces) and parts == list(_parts(node)):
        return
    whole = pieces[0].rows
    is_whole = len(pieces) == 1 and whole.are_all and same_tensor(node, whole.source)
    if is_whole and context.replace(node, whole.source):
        return
    taken = [each for piece in pieces for each in piece.taken(context, node)]
    if len(taken) > 1:
        made = call_before(context, node, aten.cat.default, (taken, dim))
    else:
        dense = {"memory_format": torch.contiguous_format}
        made = call_before(context, node, aten.clone.default, taken, dense)
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


def _rows(part: fx.Node, dim: int) -> Rows | None:
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


@dataclass(frozen=True, slots=True)
class _Parts:
    """Where each part of a concatenation begins in it.

    Attributes:
        numbers: the places of the first parts, as far as these are numbers.
        places: by where it begins, as an expression, which part does.
    """

    nodes: Sequence[fx.Node]
    dim: int
    begins: Sequence[Bound]
    numbers: Sequence[int]
    places: Mapping[object, int]

    @classmethod
    def of(cls, node: fx.Node) -> _Parts:
        parts, dim = _parts(node), _dim(node)
        begins: list[Bound] = []
        places: dict[object, int] = {}
        begin: Bound = 0
        for place, part in enumerate(parts):
            begins.append(begin)
            places[value_key(begin)] = place
            if _value(part).dim() != _value(node).dim():
                break  # an empty one of any sizes; what is behind it stays
            begin = plain(begin + _value(part).shape[dim])
        numbers = takewhile(lambda each: type(each) is int, begins)
        return cls(parts, dim, begins, cast("list[int]", list(numbers)), places)

    def holding(self, rows: Rows) -> Rows | None:
        """The rows as those of the one part that has them."""
        place = self.places.get(value_key(rows.start))
        if place is None and type(rows.start) is int:
            place = bisect_right(self.numbers, rows.start) - 1
        if place is None:
            return None
        part, begin = self.nodes[place], self.begins[place]
        joined, value = _value(rows.source), _value(part)
        if value.dim() != joined.dim() or value.dtype != joined.dtype:
            return None
        stop = plain(rows.stop - begin)
        if not at_most(stop, value.shape[self.dim]):
            return None
        found = Rows(part, self.dim, plain(rows.start - begin), stop)
        return found if found.are_takeable else None


def _read_part(context: PassContext, node: fx.Node, known: dict[fx.Node, _Parts]) -> None:
    """Let what reads rows of a concatenation read the part that these are of."""
    rows = rows_of(node)
    if rows is None or rows.source.target is not aten.cat.default:
        return
    users = [user for user in node.users if reads_elements(user)]
    if rows.dim != _dim(rows.source) or not users:
        return
    if rows.source not in known:
        known[rows.source] = _Parts.of(rows.source)
    part = known[rows.source].holding(rows)
    if part is None or not _belong_together(node, part.source):
        return
    if node.target is aten.select.int:
        made = call_before(context, node, aten.select.int, (part.source, part.dim, part.start))
    else:
        made = _sliced(context, node, part)
    for user in users:
        retarget(context, user, node, made)


def _simplify_joins(context: PassContext) -> None:
    known: dict[fx.Node, _Parts] = {}
    for node in context.graph.nodes:
        if not node.users:
            continue
        if node.target is aten.cat.default:
            _join_pieces(context, node)
        elif node.target in (aten.slice.Tensor, aten.select.int):
            _read_part(context, node, known)


JOIN_PIECES = Pass(
    "joins",
    _simplify_joins,
    "joins slices that lie side by side, and reads rows of concatenations where they come from",
)
