"""Calls of view operators: aliases, which become nodes only where their contents are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from plait_fx_passes.aten_graph import Detached, ViewStep
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.record.aliases import Alias, Lineage
from plait_fx_passes.record.fakes import fake_result, permuted
from plait_fx_passes.record.views import canonical_view, part_steps

if TYPE_CHECKING:
    from plait_fx_passes.record.recorder import Recorder

aten = torch.ops.aten
_IDENTITY_VIEWS = frozenset({aten.alias.default, aten.detach.default, aten.lift_fresh.default})
_SIZED_VIEWS = frozenset({aten.view.default, aten.expand.default})


def call_view(
    recorder: Recorder, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A call of a view operator: a new alias, and no node until its contents are read."""
    base = recorder.fake_for(cast(torch.Tensor, args[0]))
    alias = recorder.alias_of(base)
    op, rest, kwargs = canonical_view(func, base, args[1:], kwargs)
    if op is aten.as_strided.default and alias.storage.placeholder is not None:
        _check_relative(recorder, rest, kwargs)
    value = _fake_view(recorder, op, base, rest, kwargs)
    if isinstance(value, FakeTensor):
        step = ViewStep(op, rest, tuple(kwargs.items()))
        _bind_view(recorder, value, alias, base, step)
        _inherit(recorder, value, base, op)
        return value
    parts = cast("Sequence[FakeTensor]", value)
    steps = part_steps(op, base, rest, parts)
    if steps is None:
        raise AtenTraceError(f"the view operator {op} is not supported", where=recorder.where)
    for part, step in zip(parts, steps, strict=True):
        _bind_view(recorder, part, alias, base, step)
        _inherit(recorder, part, base, op, of_many=True)
    return value


def _check_relative(
    recorder: Recorder, rest: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """An offset counts from the storage, in which inputs lie elsewhere at each call."""
    if kwargs.get("storage_offset", rest[2] if len(rest) > 2 else None) is not None:
        raise AtenTraceError(
            "as_strided with a storage offset depends on where its input lies in a storage",
            where=recorder.where,
            hint="leave the offset out, or take a slice first",
        )


def _inherit(
    recorder: Recorder,
    view: torch.Tensor,
    base: torch.Tensor,
    op: OpOverload,
    *,
    of_many: bool = False,
) -> None:
    above = recorder.lineage_of(base)
    if op is aten.detach.default:
        detached = Detached.LAST
    else:
        detached = Detached.NOT if above.detached is Detached.NOT else Detached.FIRST
    followed = above.followed.then(torch.is_grad_enabled())
    is_view = above.root is not base
    of_view = op is aten.as_strided.default and is_view
    lineage = Lineage(
        above.root,
        detached,
        followed,
        of_many=of_many or above.of_many,
        restrided=of_view or above.restrided,
        uncounted=above.uncounted,
        of_leaf=above.of_leaf or (is_view and base.requires_grad and base.is_leaf),
        above=base,
        known_at=recorder.alias_of(base).storage.version,
    )
    recorder.bind_lineage(view, lineage)


def _fake_view(
    recorder: Recorder,
    op: OpOverload,
    base: FakeTensor,
    rest: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """The view of a fake tensor; straight from the meta kernel where sizes are static."""
    mode = recorder.fake_mode
    if mode.shape_env is not None:
        return fake_result(mode, op, (base, *rest), kwargs)
    if op is aten.permute.default:
        return permuted(mode, base, cast("list[int]", rest[0]))
    with in_kernel_invocation_manager(mode):
        result = op(base, *rest, **kwargs)
    if isinstance(result, torch.Tensor):
        return FakeTensor(mode, result, base.fake_device)
    return [FakeTensor(mode, part, base.fake_device) for part in result]


def _bind_view(
    recorder: Recorder, value: FakeTensor, alias: Alias, base: torch.Tensor, step: ViewStep
) -> None:
    if step.op in _IDENTITY_VIEWS or (
        surely_equal(value.shape, base.shape)
        and surely_equal(value.stride(), base.stride())
        and value.dtype == base.dtype
        and surely_equal([value.storage_offset()], [base.storage_offset()])
        and step.op not in (aten._conj.default, aten._neg_view.default)
    ):
        recorder.bind(value, alias)
        return
    if step.op is aten.as_strided.default:
        owner = alias.storage.base
        assert owner is not None
        if owner.value.dtype == value.dtype:
            alias = owner
        offset = value.storage_offset() - alias.value.storage_offset()
        step = ViewStep(step.op, (list(value.shape), list(value.stride()), offset))
    elif step.op in _SIZED_VIEWS:  # sizes of -1 are known by now
        step = ViewStep(step.op, (list(value.shape),))
    recorder.bind(value, Alias(alias.storage, value, recorder.meta, parent=alias, step=step))
