"""Sums over the pairs of an attention: gradients of what its score function captures.

Autograd sums the gradients of scores over batches and heads first, which leaves matrices of pairs,
and over pairs, or into computed places, later. What it does between is linear, so the sum may come
last, at once, of what is computed pair by pair: over the pairs of each row, or by one `index_put`
of all of them. Schedulers compute such sums beside products of the same pairs. They are added up in
float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from plait_utils import dataclass

aten = torch.ops.aten

_SUMS = (aten.sum.dim_IntList, aten.sum.default)
_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
_MOVES = (
    *(aten.view.default, aten.squeeze.dims, aten.squeeze.dim, aten.unsqueeze.default),
    *(aten.clone.default, aten._to_copy.default),
)
"""What moves or rounds values, and is left out where these are summed later."""
_LINEAR: dict[Any, tuple[int, ...]] = {
    aten.mul.Tensor: (0, 1),
    aten.mul.Scalar: (0,),
    aten.div.Tensor: (0,),
    aten.div.Scalar: (0,),
    aten.neg.default: (0,),
    aten.where.self: (1, 2),
}
"""What may be done to a sum's terms instead: to which of its arguments, given the others."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)

Call = Callable[..., fx.Node]


@dataclass(frozen=True, slots=True)
class PairSum:
    """One sum of what is computed for pairs.

    Attributes:
        pairs: what is summed, `[*Z, M, N]`.
        steps: what is done to it, each step to what the one before gives; the last of them ends the
            sum, so that nothing after it has an element for each pair.
        forms: what is left of the dimensions before each step.
    """

    pairs: fx.Node
    steps: tuple[fx.Node, ...]
    forms: tuple[_Form, ...]

    @property
    def end(self) -> fx.Node:
        """The step whose result is to be replaced."""
        return self.steps[-1]

    @property
    def is_placed(self) -> bool:
        """Whether it adds to computed places, in any order."""
        return self.end.target in _PUTS or not self.is_of_rows

    @property
    def is_of_rows(self) -> bool:
        """Whether it is over the pairs of each row, and may be over others of these."""
        form = _summed(self.end, self.forms[-1]) if self.end.target in _SUMS else None
        return form is not None and _has_pairs(form, self.pairs)


@dataclass(frozen=True, slots=True)
class _Form:
    """Partial sums over dimensions of pairs, as a tensor.

    `axes` has for each of its dimensions that of the pairs, or None for one of size 1 that is none.
    """

    axes: tuple[int | None, ...]
    gone: frozenset[int]
    """The dimensions that are summed over."""


def pair_sums(
    pairs: fx.Node, reader: fx.Node, every: Collection[fx.Node]
) -> tuple[PairSum, ...] | None:
    """The sums that a reader of `pairs` begins; None where it, or what reads its result, is nothing
    that may be done before summing. `every` is what is computed for pairs."""
    steps: list[fx.Node] = []
    while pairs.meta["val"].dtype is not torch.float32:  # they are rounded before they are summed
        sources = [pairs.args[at] for at in _LINEAR.get(pairs.target, (0,))]
        found = [each for each in sources if isinstance(each, fx.Node) and each in every]
        form = _whole(pairs)
        if len(found) != 1 or _changed(pairs, found[0], form) != form:
            return None
        steps.insert(0, pairs)
        pairs = found[0]
    form = _whole(pairs)
    start = PairSum(pairs, tuple(steps), (form,) * len(steps))
    sums = list(_followed(start, reader, form))
    return None if None in sums else tuple(each for each in sums if each is not None)


def _whole(pairs: fx.Node) -> _Form:
    """Nothing is summed yet."""
    return _Form(tuple(range(pairs.meta["val"].dim())), frozenset())


def _followed(known: PairSum, reader: fx.Node, form: _Form) -> Iterator[PairSum | None]:
    """The sums that `reader` goes on with, None where it is no part of one."""
    here = replace(known, steps=(*known.steps, reader), forms=(*known.forms, form))
    before = here.steps[-2] if known.steps else known.pairs
    if reader.target in _PUTS:
        yield here if _is_put_whole(reader, before) else None
        return
    after = _summed(reader, form) if reader.target in _SUMS else _changed(reader, before, form)
    if after is None or reader.meta["val"].dtype not in _FLOATS:
        yield None
    elif _has_pairs(after, known.pairs):
        yield here
    else:
        further = [each for user in reader.users for each in _followed(here, user, after)]
        is_sum = reader.target in _SUMS
        yield from [here] if is_sum and None in further else further


def _has_pairs(form: _Form, pairs: fx.Node) -> bool:
    """Whether all pairs of a row are summed over, or all of a column."""
    last = pairs.meta["val"].dim() - 2
    return any(axis >= last for axis in form.gone)


def _summed(step: fx.Node, form: _Form) -> _Form | None:
    """What a sum leaves."""
    rank, given = len(form.axes), step.args[1] if len(step.args) > 1 else None
    dims = range(rank) if not given else [int(dim) % rank for dim in given]  # type: ignore[union-attr, arg-type]  # a list of dimensions
    gone = form.gone | {axis for dim in dims if (axis := form.axes[dim]) is not None}
    kept = len(step.args) > 2 and step.args[2] is True
    left = [
        None if dim in dims else axis
        for dim, axis in enumerate(form.axes)
        if kept or dim not in dims
    ]
    return _Form(tuple(left), gone)


def _changed(step: fx.Node, before: fx.Node, form: _Form) -> _Form | None:
    """What a step leaves that may as well be done to the terms of a sum; None for others."""
    if step.op == "output":
        return None
    size, made = before.meta["val"].shape, step.meta["val"].shape
    if step.target in _MOVES and made == size:
        return form
    if step.target in _MOVES:
        long = [axis for axis, n in zip(form.axes, size, strict=True) if n != 1]
        if [n for n in made if n != 1] != [n for n in size if n != 1]:
            return None
        rest = iter(long)
        return replace(form, axes=tuple(None if n == 1 else next(rest) for n in made))
    at = [place for place, each in enumerate(step.args) if each is before]
    if len(at) != 1 or at[0] not in _LINEAR.get(step.target, ()) or step.kwargs or made != size:
        return None
    if step.target is aten.where.self and not _is_zero(step.args[3 - at[0]]):
        return None
    return form


def _is_zero(node: object) -> bool:
    if not isinstance(node, fx.Node) or node.target is not aten.full.default:
        return False
    return node.args[1] in (0, 0.0, False)


def _is_put_whole(put: fx.Node, values: fx.Node) -> bool:
    """Whether values are added to zeros, each at a place of its own indices."""
    start, indices, given, *accumulates = put.args
    if given is not values or accumulates != [True] or not _is_zero(start):
        return False
    assert isinstance(indices, list | tuple)
    assert isinstance(start, fx.Node)
    if len(indices) != start.meta["val"].dim():
        return False
    shapes = []
    for index in indices:
        if not isinstance(index, fx.Node) or index.meta["val"].dtype not in (
            torch.int64,
            torch.int32,
        ):
            return False
        shapes.append(index.meta["val"].shape)
    return _broadcast(shapes) == list(values.meta["val"].shape) and put.meta["val"].dtype in _FLOATS


def _broadcast(shapes: Sequence[torch.Size]) -> list[int]:
    """The shape that tensors of these have together, of which each size is 1 or the same."""
    rank = max(len(shape) for shape in shapes)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True)]


def write_sum(found: PairSum, call: Call) -> fx.Node:
    """The sum of `found`, done last, in float32, and then rounded as it was."""
    pairs, form = found.pairs, found.forms[-1]
    for number, step in enumerate(found.steps[:-1]):
        if step.target in _LINEAR:
            before = found.steps[number - 1] if number else found.pairs
            pairs = _moved(step, before, pairs, found.forms[number], call)
    wanted = found.end.meta["val"]
    if found.is_of_rows:
        made = _rows(pairs, _summed(found.end, form), call)
    elif found.end.target in _PUTS:
        given: Sequence[Any] = found.end.args[1]  # type: ignore[assignment]  # the indices
        rank = pairs.meta["val"].dim()
        indices = [_lifted(index, form, rank, call) for index in given]
        made = _put(indices, list(wanted.shape), pairs, call)
    else:
        made = _matrices(pairs, _summed(found.end, form), call)
    if made.meta["val"].shape != wanted.shape:
        if not made.meta["val"].is_contiguous():
            made = call(aten.clone.default, made, memory_format=torch.contiguous_format)
        made = call(aten.view.default, made, list(wanted.shape))
    if made.meta["val"].dtype is not wanted.dtype:
        made = call(aten._to_copy.default, made, dtype=wanted.dtype)
    return made


def _moved(step: fx.Node, before: fx.Node, pairs: fx.Node, form: _Form, call: Call) -> fx.Node:
    """A linear step, done to pairs."""
    rank = pairs.meta["val"].dim()
    args = [pairs if each is before else _lifted(each, form, rank, call) for each in step.args]
    return call(step.target, *args)


def _lifted(value: object, form: _Form, rank: int, call: Call) -> object:
    """What goes with partial sums, so that it goes with pairs."""
    if not isinstance(value, fx.Node) or not value.meta["val"].dim():
        return value
    size = value.meta["val"].shape
    found = [1] * rank
    for axis, n in zip(form.axes[len(form.axes) - len(size) :], size, strict=True):
        if n != 1:
            assert axis is not None
            found[axis] = n
    return value if list(size) == found else call(aten.view.default, value, found)


def _rows(pairs: fx.Node, form: _Form | None, call: Call) -> fx.Node:
    """A sum over the pairs of each row, and over others of these."""
    assert form is not None
    last = pairs.meta["val"].dim() - 1
    along = last if last in form.gone else last - 1
    rows = call(aten.sum.dim_IntList, pairs, [along], True)
    others = sorted(form.gone - {along})
    return call(aten.sum.dim_IntList, rows, others, True) if others else rows


def _matrices(pairs: fx.Node, form: _Form | None, call: Call) -> fx.Node:
    """A sum over batches, each pair of which has a place."""
    assert form is not None
    value = pairs.meta["val"]
    kept = [axis for axis in range(value.dim()) if axis not in form.gone]
    indices = []
    for axis in kept:
        size = [1] * value.dim()
        size[axis] = value.shape[axis]
        options = {"dtype": torch.int64, "device": value.device}
        places = call(aten.arange.start_step, 0, value.shape[axis], 1, **options)
        indices.append(call(aten.view.default, places, size))
    return _put(indices, [value.shape[axis] for axis in kept], pairs, call)


def _put(indices: list[Any], shape: list[int], pairs: fx.Node, call: Call) -> fx.Node:
    """A sum into computed places of zeros of a shape."""
    size, device = pairs.meta["val"].shape, pairs.meta["val"].device
    if not indices[0].meta["val"].dim():
        indices[0] = call(aten.view.default, indices[0], [1] * len(size))
    every = _broadcast([each.meta["val"].shape for each in indices])
    if every != list(size):  # what batches or heads share is added to once for each
        own = zip(indices[0].meta["val"].shape, every, size, strict=True)
        grown = [m if k == n else n for m, k, n in own]
        indices[0] = call(aten.expand.default, indices[0], grown)
    zeros = call(aten.full.default, shape, 0.0, dtype=torch.float32, device=device)
    return call(aten.index_put.default, zeros, indices, pairs, True)
