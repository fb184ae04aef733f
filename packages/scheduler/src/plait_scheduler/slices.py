"""Calls whose results are made slice by slice, in memory that the slices share, and copied.

On a CPU some calls cannot write where they are told to: torch's allocator gives their results fresh
memory. From a size on the C library takes that from the system and gives it back in each call, and
the faults of its pages cost more than a copy. Slices below that size are in memory that is there
already. With two threads, a product of 256 by 768 by 50257 (51 MB) by oneDNN takes 72 ms, in four
slices 46, of which 10 are copies.

On a GPU products of 16-bit floats whose rows begin at no multiple of 16 bytes go without the copy
engines that feed tensor cores. Slices get room behind their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from plait_ir_lowering import (
    Buffer,
    Definition,
    ExternArg,
    ExternCall,
    ExternList,
    Graph,
    IndexExpr,
    Layout,
    Load,
    Pointwise,
    TensorRef,
    Var,
    as_index,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.pad import begins_badly, padded_strides, read_as_they_lie
from plait_scheduler.sizes import buffer_bytes
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """How a call is taken apart: the results of calls that take slices of some arguments, one
    behind the other, are its result.

    Attributes:
        axis: of the result.
        taken: the arguments that are sliced, and along which of their axes, by position.
    """

    axis: int
    taken: Mapping[int, int]


_ROWS = Cut(0, {0: 0})
CUTS: Mapping[str, tuple[Cut, ...]] = MappingProxyType(
    {
        "mkldnn::_linear_pointwise": (Cut(1, {1: 0, 2: 0}), _ROWS),  # each weight is packed once
        "aten::convolution": (_ROWS, Cut(1, {1: 0, 2: 0})),
        "aten::mm": (_ROWS,),
        "aten::addmm": (Cut(0, {1: 0}),),
    }
)
"""By operator, the best first."""


def _cuts(body: ExternCall, buffers: Mapping[str, Buffer]) -> tuple[Cut, ...]:
    """Those of a call: transposed convolutions and those in groups are cut along the batch, and so
    is what is added to a product, where it is as large."""
    cuts = CUTS[body.op]
    if body.op == "aten::convolution" and (body.args[6] or body.args[8] != 1):
        return cuts[:1]
    added = body.args[0]
    if body.op == "aten::addmm" and isinstance(added, TensorRef):
        size = (added.view or buffers[added.buffer].layout).size
        if len(size) > 1 and size[0] is not as_index(1):
            return (Cut(0, {0: 0, 1: 0}),)
    return cuts


def slice_calls(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with calls whose results are made in slices where that is faster."""
    if not options.slice_calls:
        return graph
    stored: frozenset[str] | None = None
    buffers = {b.name: b for b in graph.inputs}
    buffers |= {b.name: b for d in graph.definitions for b in d.buffers}
    names = set(buffers)
    definitions: list[Definition] = []
    for definition in graph.definitions:
        reason = _reason(definition, options)
        if reason is not None and definition.buffers[0].device.type != "cpu":
            stored = read_as_they_lie(graph) if stored is None else stored
            if definition.buffers[0].name not in stored:
                reason = None  # it gets room itself
        sliced = None if reason is None else _sliced(definition, options, buffers, names)
        if sliced is None or reason is None:
            definitions.append(definition)
            continue
        both = definition.buffers[0].name, ""
        taken = log.settle(DecisionKind.SLICE, both, None, reason)
        definitions += sliced if taken else [definition]
    return replace(graph, definitions=tuple(definitions))


def _reason(definition: Definition, options: SchedulerOptions) -> str | None:
    """Why a call is to be sliced."""
    body = definition.body
    if not isinstance(body, ExternCall) or body.op not in CUTS or len(definition.buffers) != 1:
        return None
    (buffer,) = definition.buffers
    if not all(extent.is_constant for extent in buffer.layout.size) or buffer.layout.offset.terms:
        return None
    nbytes = buffer_bytes(buffer)
    if buffer.device.type == "cpu":
        if body.out_variant or nbytes <= options.most_result_bytes:
            return None
        return f"its {nbytes:,} bytes would be taken from the system anew in each call"
    if body.out_variant and nbytes >= _LEAST_BYTES and begins_badly(buffer):
        return f"rows of {buffer.layout.size[-1]} begin at no multiple of 16 bytes"
    return None


def _sliced(
    definition: Definition,
    options: SchedulerOptions,
    buffers: Mapping[str, Buffer],
    names: set[str],
) -> list[Definition] | None:
    """The calls for slices, copies to where they belong, and what says so; None where it cannot
    be cut."""
    body, (whole,) = definition.body, definition.buffers
    assert isinstance(body, ExternCall)
    for cut in _cuts(body, buffers):
        extent = whole.layout.size[cut.axis].as_int()
        count = -(-buffer_bytes(whole) // options.slice_bytes)
        step = -(-extent // max(count, 1))
        step += -step % (_EVEN if extent >= count * _EVEN else 1)
        if step * buffer_bytes(whole) <= extent * options.most_result_bytes:
            break
    else:
        return None
    made: list[Definition] = []
    parts: list[TensorRef] = []
    for start in range(0, extent, step):
        length = min(step, extent - start)
        args = _sliced_arguments(body, cut, buffers, start, length)
        if args is None:
            return None
        temporary, part = _places(whole, cut.axis, length, names)
        call = replace(body, args=args)
        made.append(Definition((temporary,), call, definition.origin))
        ranges = tuple(Var(f"i{n}", size) for n, size in enumerate(part.layout.size))
        value = Load(temporary.name, [var.expr for var in ranges], temporary.dtype)
        made.append(Definition((part,), Pointwise(ranges, value), definition.origin))
        parts.append(TensorRef(part.name))
    joined = ExternCall("aten::cat", "out", (ExternList(tuple(parts)), cut.axis), out_variant=True)
    return [*made, replace(definition, body=joined)]


_LEAST_BYTES = 1 << 23
"""Results of products of a GPU from which on a copy is little beside them: one of 2047**3 takes 108
us on an H100, and 82 with copies of its factors; of 1024 by 4097 by 1024 70 and 74."""
_EVEN = 64
"""Slices of columns are a multiple of so many, where there are enough."""


def _sliced_arguments(
    body: ExternCall, cut: Cut, buffers: Mapping[str, Buffer], start: int, length: int
) -> tuple[ExternArg, ...] | None:
    args = list(body.args)
    for position, axis in cut.taken.items():
        ref = args[position]
        if ref is None:
            continue
        if not isinstance(ref, TensorRef):
            return None
        view = ref.view or buffers[ref.buffer].layout
        size = list(view.size)
        size[axis] = as_index(length)
        offset = view.offset + view.stride[axis] * start
        args[position] = replace(ref, view=Layout(tuple(size), view.stride, offset))
    return tuple(args)


def _places(whole: Buffer, axis: int, length: int, names: set[str]) -> tuple[Buffer, Buffer]:
    """What a call makes, and where it belongs."""
    size = list(whole.layout.size)
    size[axis] = as_index(length)
    dense = _like(whole.layout, size)
    if whole.device.type != "cpu":
        dense = Layout.of(size, padded_strides(size))
    made = []
    for stem, layout in (("slice", dense), ("part", Layout.of(size, whole.layout.stride))):
        name, number = f"{whole.name}_{stem}", 0
        while name in names:
            number += 1
            name = f"{whole.name}_{stem}_{number}"
        names.add(name)
        made.append(replace(whole, name=name, layout=layout))
    return made[0], made[1]


def _like(layout: Layout, size: Sequence[IndexExpr]) -> Layout:
    """Of that size, dense, with dimensions in memory in the order of `layout`."""
    order = sorted(range(len(size)), key=lambda n: (layout.stride[n].as_int(), -n))
    strides = [as_index(1)] * len(size)
    step = as_index(1)
    for n in order:
        strides[n] = step
        step = step * size[n]
    return Layout.of(size, strides)
