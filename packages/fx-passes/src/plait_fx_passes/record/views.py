"""View operators in the few forms that the vocabulary keeps.

``t``, ``transpose``, ``swapaxes`` ... all become ``permute``; ``_unsafe_view`` and
``_reshape_alias`` become ``view``; ``split`` and ``unbind`` become ``slice`` and ``select``, one
for each part that is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from plait_fx_passes.aten_graph import ViewStep

aten = torch.ops.aten

Args = tuple[object, ...]


def canonical_view(
    func: OpOverload, base: torch.Tensor, args: Args, kwargs: dict[str, object]
) -> tuple[OpOverload, Args, dict[str, object]]:
    """The same view in the vocabulary's form; ``args`` are those after the viewed tensor."""
    rewrite = _CANONICAL.get(func)
    if rewrite is None:
        return func, args, kwargs
    op, new_args = rewrite(base, args)
    return op, new_args, {}


_SPLITS = frozenset(
    {
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    }
)

# Views by what they do, whatever their schemas say.
UNSAFE_VIEWS = frozenset(
    {
        aten._unsafe_view.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    }
)


def part_steps(
    func: OpOverload, base: torch.Tensor, args: Args, parts: Sequence[torch.Tensor]
) -> list[ViewStep] | None:
    """One single-output view step for each part of a multi-output view; None if unknown."""
    if func in (aten.unbind.int,):
        axis = _axis(base, args[0] if args else 0)
        return [ViewStep(aten.select.int, (axis, index)) for index in range(len(parts))]
    if func in _SPLITS:
        axis = _axis(base, args[1] if len(args) > 1 else 0)
        steps, start = [], 0
        for part in parts:
            stop = start + part.shape[axis]
            steps.append(ViewStep(aten.slice.Tensor, (axis, start, stop)))
            start = stop
        return steps
    return None


def _axis(base: torch.Tensor, axis: object) -> int:
    assert isinstance(axis, int)
    return axis % max(base.dim(), 1)


def _swap(base: torch.Tensor, first: object, second: object) -> tuple[OpOverload, Args]:
    order = list(range(base.dim()))
    if order:
        a, b = _axis(base, first), _axis(base, second)
        order[a], order[b] = order[b], order[a]
    return aten.permute.default, (order,)


def _transpose(base: torch.Tensor, args: Args) -> tuple[OpOverload, Args]:
    return _swap(base, args[0], args[1])


def _t(base: torch.Tensor, args: Args) -> tuple[OpOverload, Args]:
    return _swap(base, 0, 1) if base.dim() == 2 else (aten.alias.default, ())


def _permute(base: torch.Tensor, args: Args) -> tuple[OpOverload, Args]:
    order = args[0]
    assert isinstance(order, (list, tuple))
    return aten.permute.default, ([_axis(base, axis) for axis in order],)


def _view(base: torch.Tensor, args: Args) -> tuple[OpOverload, Args]:
    return aten.view.default, (args[0],)


def _unsqueeze(base: torch.Tensor, args: Args) -> tuple[OpOverload, Args]:
    axis = args[0]
    assert isinstance(axis, int)
    return aten.unsqueeze.default, (axis % (base.dim() + 1),)


def _squeeze(base: torch.Tensor, args: Args) -> tuple[OpOverload, Args]:
    given = args[0] if args else list(range(base.dim()))
    axes = given if isinstance(given, (list, tuple)) else [given]
    places = [_axis(base, axis) for axis in axes] if base.dim() else []
    ones = [axis for axis in places if base.shape[axis] == 1]
    return aten.squeeze.dims, (ones,)


_CANONICAL: dict[OpOverload, Callable[[torch.Tensor, Args], tuple[OpOverload, Args]]] = {
    aten.t.default: _t,
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten._unsafe_view.default: _view,
    aten._reshape_alias.default: _view,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.default: _squeeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
}
