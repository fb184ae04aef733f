"""Calls whose results are made slice by slice, in memory that the slices share, and copied.

On a CPU some calls cannot write where they are told to: torch's allocator gives their results fresh
memory. From a size on the C library takes that from the system and gives it back in each call, and
the faults of its pages cost more than a copy. Slices below that size are in memory that is there
already. With two threads, a product of 256 by 768 by 50257 (51 MB) by oneDNN takes 72 ms, in four
slices 46, of which 10 are copies.

On a GPU a product may be wider than what is handed out of it, since cuBLAS is slow in odd sizes: it
is made in slices, too, so as not to be in memory twice.
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
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions
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
    copies = _copies(graph, options)
    buffers = {b.name: b for b in graph.inputs}
    buffers |= {b.name: b for d in graph.definitions for b in d.buffers}
    names = set(buffers)
    definitions: list[Definition] = []
    left: set[str] = set()
    """Copies of what is not there whole."""
    for definition in graph.definitions:
        (name, *_) = (buffer.name for buffer in definition.buffers)
        if name in left:
            continue
        copy = copies.get(name)
        reason = _reason(definition, options) if copy is None else _COPIED
        sliced = reason and _sliced(definition, copy or definition, options, buffers, names)
        if sliced and log.settle(DecisionKind.SLICE, (name, ""), None, reason or ""):
            definitions += sliced
            left.update(() if copy is None else [copy.buffers[0].name])
        else:
            definitions.append(definition)
    return replace(graph, definitions=tuple(definitions))


_COPIED = "a part of it is handed out, and the whole would be in memory meanwhile"


def _reason(definition: Definition, options: SchedulerOptions) -> str | None:
    """Why a call of a CPU is to be sliced."""
    body = definition.body
    if not isinstance(body, ExternCall) or body.op not in CUTS or len(definition.buffers) != 1:
        return None
    (buffer,) = definition.buffers
    nbytes = buffer_bytes(buffer)
    if not _is_known(buffer) or buffer.device.type != "cpu" or body.out_variant:
        return None
    if nbytes <= options.most_result_bytes:
        return None
    return f"its {nbytes:,} bytes would be taken from the system anew in each call"


def _is_known(buffer: Buffer) -> bool:
    layout = buffer.layout
    return all(extent.is_constant for extent in layout.size) and not layout.offset.terms


def _copies(graph: Graph, options: SchedulerOptions) -> dict[str, Definition]:
    """By product of a GPU, what copies the rows of a part of it out, if nothing else reads it."""
    found: dict[str, Definition] = {}
    products = {
        d.buffers[0].name: d.buffers[0]
        for d in graph.definitions
        if isinstance(d.body, ExternCall)
        and d.body.op in CUTS
        and d.body.out_variant
        and d.buffers[0].device.type != "cpu"
        and _is_known(d.buffers[0])
        and buffer_bytes(d.buffers[0]) > options.slice_bytes
    }
    if not products:
        return found
    readers: dict[str, list[Definition]] = {name: [] for name in products}
    for definition in graph.definitions:
        for name in reads_of(definition):
            if name in readers:
                readers[name].append(definition)
    stored = frozenset(final_reads(graph))
    for name, product in products.items():
        (reader, *others) = readers[name] or (None,)
        if reader is None or others or name in stored or reader.buffers[0].name not in stored:
            continue
        if _copies_rows(reader, product):
            found[name] = reader
    return found


def _copies_rows(definition: Definition, product: Buffer) -> bool:
    """Whether it is the rows of a matrix, or what they begin with."""
    body = definition.body
    if not isinstance(body, Pointwise) or not isinstance(body.value, Load):
        return False
    load, rows, layout = body.value, product.layout.size[0], definition.buffers[0].layout
    whole = [as_index(0)] * (len(product.layout.size) - len(body.ranges))
    places = [*whole, *(var.expr for var in body.ranges)]
    is_copy = load.buffer == product.name and list(load.index) == places
    return is_copy and not whole and layout.size[0] == rows and layout.is_row_major


def _sliced(
    definition: Definition,
    copy: Definition,
    options: SchedulerOptions,
    buffers: Mapping[str, Buffer],
    names: set[str],
) -> list[Definition] | None:
    """The calls for slices, copies to where they belong, and what says so; None where it cannot
    be cut. What they make is what `copy` does of the result: that itself, or columns of it."""
    body, (result,), (whole,) = definition.body, definition.buffers, copy.buffers
    assert isinstance(body, ExternCall)
    for cut in _cuts(body, buffers):
        extent = result.layout.size[cut.axis].as_int()
        count = -(-buffer_bytes(result) // options.slice_bytes)
        step = -(-extent // max(count, 1))
        step += -step % (_EVEN if extent >= count * _EVEN else 1)
        if step * buffer_bytes(result) <= extent * options.most_result_bytes:
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
        temporary, part = _places(result, whole, cut.axis, length, names)
        call = replace(body, args=args)
        made.append(Definition((temporary,), call, definition.origin))
        ranges = tuple(Var(f"i{n}", size) for n, size in enumerate(part.layout.size))
        value = Load(temporary.name, [var.expr for var in ranges], temporary.dtype)
        made.append(Definition((part,), Pointwise(ranges, value), copy.origin))
        parts.append(TensorRef(part.name))
    joined = ExternCall("aten::cat", "out", (ExternList(tuple(parts)), cut.axis), out_variant=True)
    return [*made, replace(copy, body=joined)]


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


def _places(
    result: Buffer, whole: Buffer, axis: int, length: int, names: set[str]
) -> tuple[Buffer, Buffer]:
    """What a call for a slice of `result` makes, and its part of `whole`."""
    made = []
    for stem, of in (("slice", result), ("part", whole)):
        size = list(of.layout.size)
        size[axis] = as_index(length)
        is_part = stem == "part"
        layout = Layout.of(size, of.layout.stride) if is_part else _like(of.layout, size)
        name, number = f"{whole.name}_{stem}", 0
        while name in names:
            number += 1
            name = f"{whole.name}_{stem}_{number}"
        names.add(name)
        made.append(replace(of, name=name, layout=layout))
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
