"""Products of batches of matrices that kernels over blocks of pairs may compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait_ir_lowering import (
    Attention,
    Buffer,
    Definition,
    ExternCall,
    IndexExpr,
    Load,
    Mixture,
    Op,
    TensorRef,
    Value,
    as_index,
)
from plait_scheduler.attention_masks import key_limits, may_fail, spans_of
from plait_scheduler.nodes import reads_of
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.sizes import estimate

_PRODUCT = "aten::bmm"
_DEVICES = ("cpu", "cuda")
"""What there are kernels for."""
_FEWEST_KEYS = 256
"""With fewer keys there are no blocks of them worth finding out."""


def is_product(definition: Definition) -> bool:
    """Whether a definition is such a product."""
    body = definition.body
    known = all(buffer.device.type in _DEVICES for buffer in definition.buffers)
    return isinstance(body, ExternCall) and body.op == _PRODUCT and body.out_variant and known


def is_whole(ref: object, size: tuple[IndexExpr, ...], buffer: Buffer) -> bool:
    """Whether a tensor is a dense buffer, all of it, as batches of matrices of this size."""
    if not isinstance(ref, TensorRef) or ref.dtype is not None or not buffer.layout.is_row_major:
        return False
    layout = buffer.layout if ref.view is None else ref.view
    return layout.size == size and layout.is_row_major and layout.offset is as_index(0)


def too_long(
    refs: Sequence[TensorRef], buffers: Mapping[str, Buffer], options: SchedulerOptions
) -> str | None:
    """Why rows of tensors are too long for a kernel, if they are."""
    if options.max_head_size < 0:
        return None
    for ref in refs:
        size = (ref.view or buffers[ref.buffer].layout).size[-1]
        if not size.is_constant:
            return f"rows of {ref.buffer} have {size} elements, which only a call knows"
        if size.as_int() > options.max_head_size:
            return f"rows of {ref.buffer} have more than {options.max_head_size} elements"
    return None


def in_order(definitions: Sequence[Definition]) -> tuple[Definition, ...] | None:
    """Definitions in their order, but for those that read what comes later, which follow it; None
    if there is no such order."""
    waiting = {b.name for definition in definitions for b in definition.buffers}
    found: list[Definition] = []
    late: list[Definition] = []
    for definition in definitions:
        late.append(definition)
        ready = True
        while ready:
            ready = False
            for each in late:
                if waiting.isdisjoint(reads_of(each)):
                    late.remove(each)
                    found.append(each)
                    waiting.difference_update(b.name for b in each.buffers)
                    ready = True
                    break
    return None if late else tuple(found)


def spans_for(
    masks: Sequence[Value],
    value: Value,
    body: Attention | Mixture,
    definition: Definition,
    taken: set[str],
) -> tuple[list[Definition], tuple[Load, ...]]:
    """What tells which keys the rows of an attention or a mixture may see, of what its masks leave,
    where their form does not say it, and what finds that. Not where `value`, which is left out
    elsewhere, could fail."""
    known = all(key_limits(mask, body.ranges[-1], body.axis) is not None for mask in masks)
    few = estimate(body.axis.extent) < _FEWEST_KEYS
    if known or few or may_fail(value):
        return [], ()
    mask = masks[0]
    for other in masks[1:]:
        mask = Op("logical_and", [mask, other])
    return spans_of(mask, body.ranges, body.axis, definition, taken)
